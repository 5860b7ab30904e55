"""Programs that call native code of jaxlib, such as LAPACK: built beside the worker, and loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from tests.live_server import LiveServer
from tests.xla_flags import devices

A = np.array([[4, 1, 0.5], [1, 3, 0.25], [0.5, 0.25, 2]], np.float32)
B = np.array([1, 2, 3], np.float32)


def _functions(client: Client) -> dict[str, Callable[[Any], Any]]:
    """One for each kind of native call that jaxlib has for the CPU."""

    def numpy_linalg(name: str) -> Callable[[Any], Any]:
        def call(a: Any) -> Any:
            import jax.numpy as jnp

            return getattr(jnp.linalg, name)(a)

        return client.persistent_call(call, extra_key=name)

    def scipy_linalg(name: str) -> Callable[[Any], Any]:
        def call(a: Any) -> Any:
            import jax.scipy.linalg

            return getattr(jax.scipy.linalg, name)(a)

        return client.persistent_call(call, extra_key=name)

    def solve(a: Any) -> Any:
        import jax.numpy as jnp

        return jnp.linalg.solve(a, jnp.asarray(B))

    def triangular(a: Any) -> Any:
        import jax.scipy.linalg

        return jax.scipy.linalg.solve_triangular(a, B, lower=True)

    def fft(a: Any) -> Any:
        import jax.numpy as jnp

        return jnp.abs(jnp.fft.fft2(a))

    def top(a: Any) -> Any:
        import jax

        return jax.lax.top_k(a, 2)

    by_numpy = {
        name: numpy_linalg(name) for name in ("svd", "eigh", "qr", "cholesky", "eig", "det")
    }
    by_scipy = {name: scipy_linalg(name) for name in ("lu", "schur", "hessenberg", "expm")}
    own = {one.__name__: client.persistent_call(one) for one in (solve, triangular, fft, top)}
    return {**by_numpy, **by_scipy, **own}


def _results(client: Client) -> dict[str, list[Any]]:
    """What each of them says; a result may be a tree."""
    import jax

    found = {name: function(A) for name, function in _functions(client).items()}
    return {name: [np.asarray(x) for x in jax.tree.leaves(tree)] for name, tree in found.items()}


def _spent(client: Client) -> tuple[int, int]:
    now = client.statistics()
    return now.traces, now.compiles


def _same(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> bool:
    return all(
        np.array_equal(x, y) for name in one for x, y in zip(one[name], other[name], strict=True)
    )


@pytest.mark.slow
def test_programs_with_native_calls_serve_two_clients_and_outlive_the_worker(
    start_live: Callable[..., LiveServer],
) -> None:
    """The worker traces none of them, so that nothing has prepared their native code there."""
    server = start_live("--build-in", "builder")
    with connect(server.unix) as one, connect(server.unix) as other:
        first = _results(one)
        assert np.allclose(first["solve"][0], np.linalg.solve(A, B), atol=1e-5)
        assert np.allclose(first["det"][0], np.linalg.det(A), atol=1e-4)
        left, sizes, right = first["svd"]
        assert np.allclose(left * sizes @ right, A, atol=1e-5)
        lines = [line for line in server.lines if line["event"] == "builder_refused"]
        assert not lines
        built = _spent(one)
        assert built[0] >= len(first)
        assert _same(_results(other), first)
        assert _spent(one) == built
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert _same(_results(other), first)
        assert _same(_results(one), first)
        assert _spent(one) == (0, 0)


@pytest.mark.slow
def test_programs_with_native_calls_are_moved_to_another_device(
    start_live: Callable[..., LiveServer],
) -> None:
    """As their bytes are: compiled once for both."""
    server = start_live("--build-in", "builder", **devices(2))
    with connect(server.unix) as client:

        def solve(a: Any) -> Any:
            import jax.numpy as jnp

            return jnp.linalg.svd(a)[1] + jnp.linalg.eigh(a)[0]

        f = client.persistent_call(solve)
        found = [f.on(device=number)(A) for number in (0, 1)]
        assert np.array_equal(*found)
        assert _spent(client)[1] == 1
