"""What a user sees of an exception: frames of the user's own, here and on the server."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect, persistent_call
from tests.live_server import LiveServer

X = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _frames_are_hidden() -> Iterator[None]:
    """As in a user's process; where a server has been in this one, it has all of them shown."""
    config: Any = jax.config
    setting = config.jax_traceback_filtering
    config.update("jax_traceback_filtering", "auto")
    yield
    config.update("jax_traceback_filtering", setting)


def mismatched(x: Any) -> Any:
    """One that jax refuses to trace."""
    return jnp.dot(x, jnp.ones((5, 5)))


def divided(x: Any) -> Any:
    """One that fails by itself."""
    return x / (1 // 0)


def called_back(x: Any) -> Any:
    """One whose callback fails while the program runs."""

    def fail(value: Any) -> Any:
        raise ValueError("of the callback")

    return jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), np.float32), x)


OPTION = {"no_such_option": True}

CASES: dict[str, tuple[Any, list[str]]] = {
    "tracing, in jax": (lambda client: client.persistent_call(mismatched)(X), ["mismatched"]),
    "tracing": (lambda client: client.persistent_call(divided)(X), ["divided"]),
    "the compiler": (
        lambda client: client.persistent_call(lambda x: x, compiler_options=OPTION)(X),
        [],
    ),
    "the compiler, warming": (
        lambda client: client.persistent_call(lambda x: x, compiler_options=OPTION).warm(X),
        [],
    ),
    "the runtime": (lambda client: client.persistent_call(called_back)(X), []),
    "an argument": (lambda client: client.persistent_call(divided)(object()), []),
    "arguments that do not fit": (lambda client: client.persistent_call(divided)(), []),
    "a transformation": (lambda client: client.persistent_call(jnp.sin).grad()(X), []),
    "a derivative": (lambda client: client.persistent_call(divided).vjp(X), ["divided"]),
    "inside of jax": (
        lambda client: jax.jit(lambda x: 2 * client.persistent_call(divided)(x))(X),
        ["<lambda>", "divided"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_users_own_frames_are_shown(shared: Client, case: str) -> None:
    """Wherever it was raised; what the notes and the chain show as well."""
    call, own = CASES[case]
    with pytest.raises(Exception) as caught:  # noqa: PT011  each has its own type
        call(shared)
    error = caught.value
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames]
    assert names == ["test_only_the_users_own_frames_are_shown", "<lambda>", *own]
    shown = "".join(traceback.format_exception(error))
    for internal in ("jaxd_server/", "/jaxd_protocol/", "client/jaxd/", "jax/_src/", "NotStored"):
        assert internal not in shown
    if case == "the runtime":
        assert "ValueError: of the callback" in shown
        assert f'File "{__file__}"' in shown


def test_all_of_them_are_shown_on_demand(shared: Client) -> None:
    """Of jax, of the server and of jaxd here, as jax's own setting says."""
    config: Any = jax.config
    setting = config.jax_traceback_filtering
    shown = {}
    try:
        for value in ("off", "auto"):
            config.update("jax_traceback_filtering", value)
            with pytest.raises(jax.errors.JaxRuntimeError) as caught:
                CASES["the compiler"][0](shared)
            shown[value] = "".join(traceback.format_exception(caught.value))
    finally:
        config.update("jax_traceback_filtering", setting)
    for internal in ("jaxd_server/", "client/jaxd/", "jax/_src/"):
        assert internal in shown["off"]
    assert "JAX_TRACEBACK_FILTERING=off" in shown["auto"]
    assert len(shown["auto"].splitlines()) < 12


def test_a_future_has_none_of_ours_either(shared: Client) -> None:
    """What `concurrent.futures` adds is its own."""
    error = shared.persistent_call(divided).submit(X).exception()
    assert error is not None
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert names == ["divided"]


def test_where_programs_are_verified_as_well(live: LiveServer) -> None:
    """A call is wrapped once more there."""
    with connect(live.unix, verify=True) as client, pytest.raises(ZeroDivisionError) as caught:
        client.persistent_call(divided)(X)
    shown = "".join(traceback.format_exception(caught.value))
    assert "client/jaxd/" not in shown
    assert "in divided" in shown


def test_without_a_server_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `JAXD_INLINE=1` jax hides its own."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    with pytest.raises(ZeroDivisionError) as caught:
        persistent_call(divided)(X)
    shown = "".join(traceback.format_exception(caught.value))
    assert "client/jaxd/" not in shown
    assert "in divided" in shown


def test_an_object_that_answers_anything_hides_no_error(shared: Client) -> None:
    """Such as a dict whose missing attributes are missing items, and no AttributeError."""

    class Items(dict[str, float]):
        __getattr__ = dict.__getitem__

    items = Items(rate=0.5)
    with pytest.raises(ZeroDivisionError):
        shared.persistent_call(lambda x: x * len([items]) / (1 // 0))(X)


def test_what_led_to_an_error_is_shown_without_our_frames(shared: Client) -> None:
    """An exception that the user was handling stays the context, with its frames."""

    def while_handling() -> None:
        try:
            dict[str, int]()["mine"]
        except KeyError:
            shared.persistent_call(divided)(X)

    with pytest.raises(ZeroDivisionError) as caught:
        while_handling()
    context = caught.value.__context__
    assert isinstance(context, KeyError)
    assert context.__traceback__ is not None
    assert "During handling" in "".join(traceback.format_exception(caught.value))
