"""What a tracer meets in a persistent function, through a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import ResultError, TracerError
from tests.end_to_end.counting import costs

X = np.arange(1.0, 4.0, dtype="f4")


class Box:
    """jax does not take it apart."""

    def __init__(self, content: Any) -> None:
        self.content = content


def doubled(x: Any, mode: Any = 1) -> Any:
    """What is called."""
    return x * 2


Use = Callable[[Client, Any, Any], Any]

REFUSED: dict[str, tuple[Use, str]] = {
    "submit": (lambda c, f, x: f.submit(x).result(), "Make a plain call"),
    "call_async": (lambda c, f, x: asyncio.run(f.call_async(x)), "Make a plain call"),
    "map": (lambda c, f, x: list(f.map([x])), "Make a plain call"),
    "remote": (lambda c, f, x: f.remote(x), "Make a plain call"),
    "warm": (lambda c, f, x: f.warm(x), "Make a plain call"),
    "why": (lambda c, f, x: f.why(x), "Make a plain call"),
    "put": (lambda c, f, x: c.put({"deep": x}), "Make a plain call"),
    "static": (
        lambda c, f, x: c.persistent_call(doubled, static_argnums=1)(X, x),
        "Take it out of static_argnums",
    ),
    "static, inside": (
        lambda c, f, x: c.persistent_call(doubled, static_argnames="mode")(x, mode=(1, x)),
        "Take it out of static_argnums",
    ),
    "captured": (
        lambda c, f, x: c.persistent_call(lambda y: x * y)(X),
        "Pass the value as an argument",
    ),
    "held by an object": (
        lambda c, f, x: c.persistent_call(lambda box: box.content)(Box(x)),
        "Pass the value as an argument",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_a_tracer_cannot_work_it_says_so(shared: Client, name: str) -> None:
    """And what to do; jax's own error has no place beside it."""
    use, advice = REFUSED[name]
    function = shared.persistent_call(doubled)
    with pytest.raises(TracerError, match=advice) as caught:
        jax.jit(lambda x: use(shared, function, x))(X)
    assert not isinstance(caught.value.__context__, TracerError)


def test_pickling_a_tracer_is_refused_by_jax(shared: Client) -> None:
    """Which says where it comes from."""
    import pickle

    with pytest.raises(jax.errors.ConcretizationTypeError, match="pickle"):
        jax.jit(pickle.dumps)(X)


def test_the_form_of_a_result_is_asked_for_once(client: Client) -> None:
    """And its program is that of a plain call."""

    def fresh(x: Any) -> Any:
        return jnp.cosh(x) + 3

    function = client.persistent_call(fresh)
    with costs(client) as plain:
        function(X)
    with costs(client) as traced:
        jax.vmap(lambda x: x + 1)(jnp.ones(2))
        jax.eval_shape(function, X)
        jax.eval_shape(function, X)
        jax.jvp(lambda x: function(jax.lax.stop_gradient(x)), (X,), (X,))
    assert (plain["traces"], "traces" in traced) == (1, False)
    assert traced == {"executable_hits": 1}  # the call of jvp; to be asked counts for nothing


def test_an_array_on_the_server_that_a_program_touches_can_be_used_after_it(shared: Client) -> None:
    """What is fetched there is an array, and no tracer of that program."""
    there = shared.put(np.ones((200, 100), "f4"))
    assert float(jax.jit(lambda x: (x + there).sum())(1.0)) == 40_000
    assert float((there + 1).sum()) == 40_000


def test_a_result_that_jax_does_not_take_apart_here_is_refused(
    shared: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be lost what belongs where."""
    from jaxd_protocol.pytree.layout import Layout

    function = shared.persistent_call(doubled)
    function(X)
    monkeypatch.setattr(Layout, "build", lambda self, leaves: object())
    with pytest.raises(ResultError, match="Import the module that registers"):
        jax.eval_shape(function, X)


def test_without_a_server_jax_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `JAXD_INLINE=1`."""
    from jaxd import persistent_call

    monkeypatch.setenv("JAXD_INLINE", "1")
    function = persistent_call(doubled)
    np.testing.assert_array_equal(jax.jacfwd(function)(X), 2 * np.eye(3))


def test_what_jax_goes_on_with_is_its_own(shared: Client) -> None:
    """Whatever form the results of the function have."""
    for results in ("numpy", "jax"):
        function: Any = shared.persistent_call(doubled, results=results)
        for transform in (jax.vmap, jax.jit):
            found = transform(function)(X)
            assert isinstance(found, jax.Array)
            np.testing.assert_array_equal(found, X * 2)
