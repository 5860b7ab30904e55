"""Results without a derivative, for which jax has arrays of `float0`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxd import Client
from tests.live_server import LiveServer
from tests.warm_clients import run_light

X, N = np.arange(1.0, 4.0, dtype="f4"), np.arange(4)


def product(x: Any, n: Any) -> Any:
    """A number."""
    return jnp.sum(x) * jnp.sum(n)


def test_they_come_home_as_jax_has_them(client: Client) -> None:
    """Whatever stays on the server, under `jax.jit`, and behind another derivative."""
    theirs = jax.grad(product, (0, 1), allow_int=True)
    made = client.persistent_call(theirs)
    asked: list[Any] = [made, made.remote, lambda *args: made.submit(*args).result(), jax.jit(made)]
    for ask in asked:
        slope, nothing = ask(X, N)
        assert (nothing.dtype, nothing.shape) == (jax.dtypes.float0, (4,))
        np.testing.assert_array_equal(np.asarray(slope), theirs(X, N)[0])
    state, _ = made.remote(X, N)
    np.testing.assert_array_equal(np.asarray(made(state, N)[0]), theirs(X, N)[0])
    np.testing.assert_array_equal(jax.grad(lambda x: made(x, N)[0].sum())(X), np.zeros(3))


def test_a_process_without_jax_has_them_of_numpy(live: LiveServer) -> None:
    """Without any data; the other leaves are where they belong."""
    program = """
import sys, numpy as np
from jaxd import persistent_call

@persistent_call
def slopes(x, n):
    import jax
    return jax.grad(lambda x, n: (x * n).sum(), (1, 0), allow_int=True)(x, n)

nothing, slope = slopes(np.ones(2, "f4"), 3)
print(nothing.dtype, nothing.shape, slope.tolist(), "jax" in sys.modules)
"""
    done = run_light(live, program)
    assert (done.stderr, done.stdout) == ("", "[('float0', 'V')] () [3.0, 3.0] False\n")
