"""Functions that lower to the same program share it; nobody gets one of other settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from tests.end_to_end.counting import BUILT, LOADED, WARM, costs, records
from tests.end_to_end.steps import SHARED
from tests.live_server import LiveServer

pytestmark = pytest.mark.counts_builds

StartLive = Callable[..., LiveServer]

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


def at_once(x: Any) -> Any:
    return jnp.tanh(x) * 2 + 0.8125


def in_steps(value: Any) -> Any:
    y = jnp.tanh(value)
    return y * 2 + 0.8125


def test_refactored_code_shares_its_program(client: Client) -> None:
    """Another name, an intermediate one, a renamed parameter: whatever lowers to the same."""
    for function, expected in ((at_once, BUILT), (in_steps, SHARED), (in_steps, WARM)):
        with costs(client) as spent:
            client.persistent_call(function)(X)
        assert spent == expected


def printing(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x + 1


def printing_as_well(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x + 1


def test_callbacks_are_not_shared(client: Client) -> None:
    """Each function has its own Python code behind them."""
    for function in (printing, printing_as_well):
        with costs(client) as spent:
            client.persistent_call(function)(X)
        assert spent == BUILT


def strong(x: Any) -> Any:
    return jax.lax.convert_element_type(x * 7, jnp.float32)


def weak(x: Any) -> Any:
    return x * 7


def test_weak_types_tell_programs_apart(client: Client) -> None:
    """The code is the same, what is returned is not."""
    for function, is_weak in ((weak, True), (strong, False), (weak, True)):
        assert client.persistent_call(function, extra_key="types")(1.5).weak_type is is_weak


# what only looks like the same program ------------------------------------------------------------

KEY = np.array([1, 2, 3, 4], np.uint32)


class Pair(NamedTuple):
    x: Any
    y: Any


def first(x: Any) -> Any:
    return jnp.sin(x) * 5


def second(x: Any) -> Any:
    return jnp.sin(x) * 5


TWINS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], bool]] = {
    "renamed": (first, second, (X,), True),
    "unused": (lambda x, y: x * 3, lambda x, y: y * 3, (X, X + 1), False),
    "keys and data": (
        jax.random.key,
        lambda seed: jax.random.key_data(jax.random.key(seed)),
        (np.int32(7),),
        False,
    ),
    "kinds of keys": (
        lambda data: jax.random.wrap_key_data(data, impl="rbg"),
        lambda data: jax.random.wrap_key_data(data, impl="unsafe_rbg"),
        (KEY,),
        False,
    ),
    "order": (lambda x: (x + 9, x - 9), lambda x: (x - 9, x + 9), (X,), False),
    "structure": (
        lambda x: {"a": x + 8, "b": x - 8},
        lambda x: Pair(x + 8, (x - 8, None)),
        (X,),
        True,
    ),
    "names": (
        lambda x: {"a": x + 7, "b": x - 7},
        lambda x: {"c": x + 7, "d": x - 7},
        (X,),
        True,
    ),
    "arguments": (
        lambda p: p[0] / p[1],
        lambda a: a[0]["x"] / a[0]["y"],
        (Pair(X, X + 1),),
        True,
    ),
}
"""Two functions, their arguments, and whether they are one program."""
OTHER_ARGUMENTS: dict[str, tuple[Any, ...]] = {"arguments": (({"x": X, "y": X + 1},),)}


def seen(result: Any) -> Any:
    """What can be seen of a result: structure, types and bits."""
    leaves = jax.tree.leaves(result)
    data = [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in leaves
    ]
    bits = [np.asarray(each).tobytes() for each in data]
    return jax.tree.structure(result), [str(leaf.dtype) for leaf in leaves], bits


@pytest.mark.soak
def test_twins_keep_what_is_their_own(start_live: StartLive, runtime: Path) -> None:
    """Whether they share a program or not, before and after a restart, in either order."""
    shared = sum(is_shared for *_, is_shared in TWINS.values())
    for turn in (1, -1):
        server = start_live(name=f"turn{turn}")
        with connect(server.unix) as client:
            for name, (one, other, args, is_shared) in TWINS.items():
                calls = ((one, args), (other, OTHER_ARGUMENTS.get(name, args)))
                for number, (function, given) in enumerate(calls[::turn]):
                    with costs(client) as spent:
                        result = client.persistent_call(function)(*given)
                    assert (name, seen(result)) == (name, seen(jax.jit(function)(*given)))
                    built = SHARED if number and is_shared else BUILT
                    assert (name, spent) == (name, built if turn == 1 else LOADED)
        assert server.close() == 0
        assert len(records(runtime, "calls")) == 2 * len(TWINS)
        assert len(records(runtime, "programs")) == 2 * len(TWINS) - shared
