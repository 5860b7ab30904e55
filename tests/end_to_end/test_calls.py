"""What goes in and what comes out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import ConfigurationError
from tests.live_server import LiveServer


class Point(NamedTuple):
    x: Any
    y: Any


def test_a_result_is_what_jax_jit_gives(client: Client) -> None:
    """Arrays in, arrays out, with jax's dtypes."""

    @client.persistent_call
    def linear(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    x, w = np.ones((3, 4), np.float32), np.full((4, 2), 2, np.float32)
    result = linear(x, w, 1.0)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(np.full((3, 2), 9, np.float32), np.asarray(result))


@pytest.mark.parametrize(
    "tree",
    [
        {"b": [np.float32(1), (2, None)], "a": OrderedDict(z=np.arange(3), y=True)},
        Point({"deep": np.zeros((2, 0))}, [np.int8(3)]),
        ((), [], {}, None),
        [1.5, 2, False, 1j],
        {("t", 1): np.ones(3, ml_dtypes.bfloat16), ("t", 2): np.ones((), ml_dtypes.float8_e4m3fn)},
        np.arange(1 << 16, dtype=np.uint16).reshape(256, 256),
    ],
    ids=["nested", "named tuple", "empty", "scalars", "small floats", "large"],
)
def test_any_tree_goes_there_and_back(client: Client, tree: Any) -> None:
    """Structure, shapes and values; the same as `jax.jit` of the identity returns."""
    import jax

    identity = client.persistent_call(lambda tree: tree)
    result, expected = identity(tree), jax.jit(lambda tree: tree)(tree)
    assert str(jax.tree.structure(result)) == str(jax.tree.structure(expected))
    for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_typed_prng_keys_travel_both_ways(client: Client) -> None:
    """As keys, with their implementation."""
    import jax

    @client.persistent_call
    def split(key: Any) -> Any:
        import jax

        return jax.random.split(key)

    key = jax.random.key(7)
    result = split(key)
    assert result.dtype == key.dtype
    expected = jax.random.key_data(jax.random.split(key))
    np.testing.assert_array_equal(jax.random.key_data(result), expected)


def test_static_arguments_select_the_program(client: Client) -> None:
    """By position or by name, as in jax.jit."""

    @client.persistent_call(static_argnames="affine")
    def layer(x: Any, affine: bool = True) -> Any:
        return x * 2 if affine else x

    assert [float(layer(3.0)), float(layer(3.0, False)), float(layer(3.0, affine=False))] == [
        6,
        3,
        3,
    ]


def test_methods_and_partials_can_be_persistent(client: Client) -> None:
    """Bound objects travel with the function."""
    import functools

    add = client.persistent_call(functools.partial(lambda a, b: a - b, 10.0))
    assert float(add(4.0)) == 6.0


def test_futures_and_maps_keep_order(client: Client) -> None:
    """More calls than the server takes at once are queued by the client."""
    square = client.persistent_call(lambda x: x * x)
    futures = [square.submit(float(i)) for i in range(100)]
    assert [float(future.result()) for future in futures] == [float(i * i) for i in range(100)]
    assert [float(x) for x in square.map(map(float, range(100)))] == [
        float(i * i) for i in range(100)
    ]


def test_a_map_over_an_endless_iterator_takes_only_what_it_needs(client: Client) -> None:
    """The iterator is not run ahead of the results by more than the calls in flight."""
    import itertools

    double = client.persistent_call(lambda x: x * 2)
    results = double.map(map(float, itertools.count()))
    assert [float(next(results)) for _ in range(5)] == [0, 2, 4, 6, 8]


def test_calls_can_be_awaited(client: Client) -> None:
    """Many at once on one event loop."""
    double = client.persistent_call(lambda x: x * 2)

    async def main() -> list[Any]:
        return await asyncio.gather(*(double.call_async(float(i)) for i in range(20)))

    assert [float(x) for x in asyncio.run(main())] == [2.0 * i for i in range(20)]


def test_arguments_may_be_overwritten_when_submit_returns(client: Client) -> None:
    """The bytes have left the process by then."""
    total = client.persistent_call(lambda x: x.sum())
    x = np.ones(1 << 20, np.float32)
    futures = []
    for _ in range(4):
        futures.append(total.submit(x))
        x += 1
    assert [float(f.result()) for f in futures] == [float(i) * (1 << 20) for i in (1, 2, 3, 4)]


def test_many_large_calls_in_flight_do_not_deadlock(client: Client) -> None:
    """Eight of 16 MB each way on one connection."""
    echo = client.persistent_call(lambda x: x + 1)
    x = np.zeros(4 << 20, np.float32)
    futures = [echo.submit(x) for _ in range(8)]
    assert all(float(np.asarray(future.result())[-1]) == 1.0 for future in futures)


def test_a_nested_persistent_function_stays_on_the_server(client: Client) -> None:
    """It becomes part of the outer program."""
    inner = client.persistent_call(lambda x: x + 1)

    @client.persistent_call
    def outer(x: Any) -> Any:
        return inner(x) * 2

    before = client.statistics()
    assert float(outer(1.0)) == 4.0
    assert client.statistics().calls == before.calls + 1


def test_jax_settings_travel_with_the_call(client: Client) -> None:
    """Those given, and those of this process; other calls do not see them."""
    import jax

    double = client.persistent_call(
        lambda x: x * 2, config={"jax_enable_x64": True}, results="numpy"
    )
    plain = client.persistent_call(lambda x: x * 2, results="numpy")
    x = np.ones(3)
    assert double(x).dtype == np.float64
    assert plain(x).dtype == np.float32
    with jax.enable_x64(True):
        assert plain(x).dtype == np.float64


def test_a_users_own_pytree_classes_travel_both_ways(client: Client) -> None:
    """With their registration there, and as instances of the same classes when they come home."""
    import jax

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        weights: Any
        step: Any
        name: str = dataclasses.field(metadata={"static": True}, default="adam")

    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

        def tree_flatten(self) -> Any:
            return (self.left, self.right), None

        @classmethod
        def tree_unflatten(cls, aux: None, children: Any) -> Any:
            return cls(*children)

    @client.persistent_call
    def update(state: Any, pair: Any) -> Any:
        return dataclasses.replace(state, step=state.step + 1), Pair(pair.right, pair.left)

    state, pair = update(State(np.ones(2000, np.float32), 0), Pair(1.0, 2.0))
    assert type(state) is State
    assert type(pair) is Pair
    assert (int(state.step), state.name, state.weights.shape) == (1, "adam", (2000,))
    assert (float(pair.left), float(pair.right)) == (2.0, 1.0)
    before = client.statistics().traces
    update(state, pair)
    update(state, pair)
    assert client.statistics().traces - before <= 1


@pytest.mark.slow
def test_the_servers_own_environment_decides_nothing(start_live: Callable[..., LiveServer]) -> None:
    """A server whose starter had JAX_ENABLE_X64 gives others what plain jax gives them."""
    server = start_live(JAX_ENABLE_X64="1")
    program = """
import numpy as np
from jaxd import persistent_call
print(persistent_call(lambda x: x * 2)(np.ones(3)).dtype)
"""
    assert server.run(program).stdout == "float32\n"
    assert server.run(program, JAX_ENABLE_X64="1").stdout == "float64\n"


def test_two_functions_may_have_classes_of_one_name(client: Client) -> None:
    """Each gets results of its own, also when both look alike from outside."""
    import jax

    def make(scale: float) -> tuple[Any, Any]:
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Scaled:
            value: Any

            def show(self) -> float:
                return float(self.value) * scale

        return Scaled, client.persistent_call(lambda x: Scaled(x))  # noqa: PLW0108  a function

    (first, f), (second, g) = make(2.0), make(3.0)
    for _ in range(2):
        assert type(f(1.0)) is first
        assert type(g(1.0)) is second
    assert (f(1.0).show(), g(1.0).show()) == (2.0, 3.0)


def test_a_function_that_changes_jaxs_settings_fails_by_name_and_nobody_else_does(
    client: Client,
) -> None:
    """What it changed is undone at once."""

    @client.persistent_call
    def careless(x: Any) -> Any:
        import jax

        jax.config.update("jax_enable_x64", True)
        return x * 2

    with pytest.raises(ConfigurationError, match=r"careless.* changed jax_enable_x64"):
        careless(1.0)
    plain = client.persistent_call(lambda x: x * 2, extra_key="after careless", results="numpy")
    assert plain(np.ones(3)).dtype == np.float32
