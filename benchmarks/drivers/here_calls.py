"""Small functions, by `jax.jit` or with `place="here"`: `here_calls jit`, `here_calls ADDRESS`.

In a fresh process: `first` is what sixty programs take until each was called three times, which
with `place="here"` is less often than it takes for a program to come.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from benchmarks.answering import answer_requests, measure_throughput
from jaxd import connect

PROGRAMS: Final = 60
CALLS: Final = 3


def small_program(number: int) -> Callable[[Any], Any]:
    """A function that is like no other, of some twenty operations."""

    def program(x: Any) -> Any:
        for step in range(6):
            x = jnp.tanh(x @ x.T + number) * (step + 0.5 + number / 100)
        return x.sum(axis=0), x.max()

    return program


def main() -> None:
    """Measures until the input closes."""
    make: Callable[[Callable[..., Any]], Callable[..., Any]] = jax.jit
    if sys.argv[1] != "jit":
        make = connect(sys.argv[1], place="here").persistent_call
    x = jnp.ones((16, 16))
    affine = make(lambda x: x * 2.0 + 1.0)
    jax.block_until_ready([affine(x) for _ in range(300)])  # its program is here by then

    def tiny(calls: int) -> None:
        made = x
        for _ in range(calls):
            made = affine(x)
        made.block_until_ready()

    def first(_: int) -> None:
        for number in range(PROGRAMS):
            program = make(small_program(number))
            for _ in range(CALLS):
                made = program(x)
        jax.block_until_ready(made)

    answer_requests({"tiny": measure_throughput(tiny), "first": measure_throughput(first)})


if __name__ == "__main__":
    main()
