"""The types of `persistent_call` in all its forms: `mypy` fails when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, assert_type

import jax

import jaxd
from jaxd import Client, persistent_call
from jaxd.dispatch.warm import Verdict, Warmed


@persistent_call
def bare(x: float, y: int = 1) -> list[float]:
    """The bare decorator."""
    return [x] * y


@persistent_call(static_argnames="mode", timeout_s=3.0, results="numpy")
def with_options(x: float, *, mode: str) -> dict[str, float]:
    """A decorator with options."""
    return {mode: x}


def function(x: float) -> bytes:
    """A plain function."""
    return bytes([int(x)])


plain = persistent_call(function, port=18861)


def results_have_the_functions_type() -> None:
    """In calls, futures, maps."""
    assert_type(bare(1.0, 2), list[float])
    assert_type(bare.submit(1.0, y=2), Future[list[float]])
    assert_type(bare.map([1.0, 2.0]), Iterator[list[float]])
    assert_type(with_options(1.0, mode="a"), dict[str, float])
    assert_type(with_options.submit(1.0, mode="a").result(), dict[str, float])
    assert_type(plain(1.0), bytes)
    assert_type(plain.submit(1.0), Future[bytes])
    assert_type(bare.fingerprint, str)
    assert_type(bare.on(device=2)(1.0), list[float])
    assert_type(bare.on(jaxd.devices()[0]).submit(1.0), Future[list[float]])


def warming_takes_specs_in_place_of_arrays(spec: object) -> None:
    """So its arguments are of any type."""
    assert_type(bare.warm(spec, 3), Warmed)
    assert_type(with_options.warm({"w": spec}, mode="a").verdict, Verdict)
    assert_type(bare.clear(), int)


class Model:
    """Whose methods run on a server."""

    @persistent_call
    def predict(self, x: float, y: int = 1) -> list[float]:
        """A method."""
        return [x] * y

    @persistent_call
    @staticmethod
    def plain(x: float) -> bytes:
        """A static method."""
        return bytes([int(x)])


def methods_have_the_types_without_the_instance(model: Model) -> None:
    """In all that can be asked of them."""
    assert_type(model.predict(1.0, y=2), list[float])
    assert_type(model.predict.submit(1.0), Future[list[float]])
    assert_type(model.predict.remote(1.0, 2), list[float])
    assert_type(model.predict.map([1.0]), Iterator[list[float]])
    assert_type(model.predict.on(1)(1.0), list[float])
    assert_type(Model.predict(model, 1.0), list[float])
    model.predict("text")  # type: ignore[arg-type]
    model.predict(model, 1.0)  # type: ignore[arg-type]
    model.predict.submit()  # type: ignore[call-arg]


def transformed_ones_have_the_functions_parameters(model: Model) -> None:
    """And what is known of their results; of a gradient that depends on its options."""
    assert_type(bare.vmap()(1.0, 2), list[float])
    assert_type(bare.value_and_grad()(1.0), tuple[list[float], Any])
    assert_type(bare.grad().submit(1.0), Future[Any])
    assert_type(bare.grad().vmap().value_and_grad()(1.0, y=2), tuple[Any, Any])
    assert_type(model.predict.vmap()(1.0), list[float])
    bare.grad()("text")  # type: ignore[arg-type]
    bare.hessian().vmap()(1.0, z=2)  # type: ignore[call-arg]
    model.predict.grad()(model, 1.0)  # type: ignore[arg-type]


def stages_are_those_of_jax(model: Model) -> None:
    """Also of a method."""
    assert_type(bare.trace(1.0), jax.stages.Traced)
    assert_type(bare.lower(1.0).compile(), jax.stages.Compiled)
    assert_type(model.predict.lower(1.0), jax.stages.Lowered)


async def coroutines_have_it_as_well() -> None:
    """When they are awaited."""
    assert_type(await bare.call_async(1.0), list[float])
    assert_type(await plain.call_async(1.0), bytes)


def wrong_arguments_are_seen() -> None:
    """As in a call of the function itself."""
    bare("text")  # type: ignore[arg-type]
    bare.submit()  # type: ignore[call-arg]
    with_options(1.0)  # type: ignore[call-arg]
    plain(1.0, 2.0)  # type: ignore[call-arg]


def wrong_options_are_seen() -> None:
    """Names and values."""
    persistent_call(function, results="torch")  # type: ignore[call-overload]
    persistent_call(function, no_such_option=1)  # type: ignore[call-overload]


def clients_make_them_too(client: Client) -> None:
    """With the same types."""

    @client.persistent_call
    def first(x: float) -> int:
        return int(x)

    @client.persistent_call(donate_argnums=0)
    def second(x: float) -> str:
        return str(x)

    assert_type(first(1.0), int)
    assert_type(second(1.0), str)
    assert_type(client.persistent_call(function)(1.0), bytes)
    assert_type(client.statistics(), jaxd.Statistics)
    assert_type(client.info(), dict[str, Any])
    with jaxd.connect() as entered:
        assert_type(entered, Client)


def they_are_callables(x: float) -> bytes:
    """Wherever a function of that type is expected."""
    call: Callable[[float], bytes] = plain
    return call(x)
