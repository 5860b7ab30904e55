"""Trees of leaves on the host, to the device and back: `trees jit`, or `trees ADDRESS`.

By `jax.jit` with the results on the host, or by a client of jaxd without jax.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.answering import answer_requests, measure_median
from jaxd import persistent_call

NUMBERS: Final = (100, 1000, 2000)
ARRAYS: Final = 1000
_ARRAY: Final = 300  # of 4 bytes each


def one_more(tree: dict[str, Any]) -> dict[str, Any]:
    """What it computes costs nothing beside its leaves."""
    return {name: leaf + 1 for name, leaf in tree.items()}


def trees() -> dict[str, dict[str, Any]]:
    """By name, what the function is called with."""
    made: dict[str, dict[str, Any]] = {
        f"{count} numbers": {f"n{number}": float(number) for number in range(count)}
        for count in NUMBERS
    }
    arrays = {f"a{number}": np.full(_ARRAY, number, np.float32) for number in range(ARRAYS)}
    return made | {f"{ARRAYS} arrays": arrays}


def main() -> None:
    """Measures until the input closes."""
    call: Callable[..., Any]
    if sys.argv[1] == "jit":
        import jax

        jitted = jax.jit(one_more)

        def call(tree: Any) -> Any:
            return jax.device_get(jitted(tree))
    else:
        call = persistent_call(one_more, server=sys.argv[1])
    made = trees()
    for tree in made.values():
        name, leaf = list(tree.items())[-1]
        assert np.array_equal(call(tree)[name], leaf + 1)
    answer_requests({name: measure_median(partial(call, tree)) for name, tree in made.items()})


if __name__ == "__main__":
    main()
