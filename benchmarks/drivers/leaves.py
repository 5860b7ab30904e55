"""Trees of more and more leaves: `leaves jit COUNT`, or `leaves ADDRESS COUNT` without jax.

Each leaf is an array of 64 bytes, so that only their number counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_median, measure_throughput
from benchmarks.drivers.trees import one_more


def by_jaxd(address: str, tree: Any) -> tuple[Callable[[], Any], Callable[[int], None]]:
    """A call with the tree, and so many steps of a loop whose state stays on the server."""
    import jaxd

    client = jaxd.connect(address)
    call = client.persistent_call(one_more)
    step = client.persistent_call(one_more, donate_argnums=0)
    kept = client.put(tree)

    def loop(steps: int) -> None:
        nonlocal kept
        for _ in range(steps):
            kept = step.remote(kept)
        jaxd.wait(kept)

    return lambda: call(tree), loop


def by_jit(tree: Any) -> tuple[Callable[[], Any], Callable[[int], None]]:
    """The same of `jax.jit`, with results on the host and with a state on the device."""
    import jax

    call, step = jax.jit(one_more), jax.jit(one_more, donate_argnums=0)
    kept = jax.device_put(tree)

    def loop(steps: int) -> None:
        nonlocal kept
        for _ in range(steps):
            kept = step(kept)
        jax.block_until_ready(kept)

    return lambda: jax.device_get(call(tree)), loop


def main() -> None:
    """Measures until the input closes."""
    where, count = sys.argv[1], int(sys.argv[2])
    tree = {f"a{number}": np.full(16, number, np.float32) for number in range(count)}
    call, loop = by_jit(tree) if where == "jit" else by_jaxd(where, tree)
    for _ in range(3):
        found = call()
        loop(2)
    assert np.array_equal(found[f"a{count - 1}"], tree[f"a{count - 1}"] + 1)
    answer_requests({"host": measure_median(call), "state": measure_throughput(loop)})


if __name__ == "__main__":
    main()
