"""Trains the GPT whose step one decorator or the other runs: `gpt_loop jit|ADDRESS SIZE`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_throughput
from benchmarks.programs.gpt import SHAPES, Shape, first_state, make_text, train_step

_LOOKED_AT = 10
"""Each tenth loss is looked at, as a progress bar does."""


class Loop:
    """One run of it; each step passes `repeats` times over its text."""

    def __init__(self, decorate: Any, shape: Shape) -> None:
        self._step = decorate(train_step, static_argnames="shape", donate_argnums=0)
        self._shape = tuple(shape)
        self._texts = [make_text(shape, seed) for seed in range(8)]
        begin = decorate(first_state, static_argnames="shape")
        self._state = begin(self._texts[0], shape=self._shape)
        self._repeats = np.int32(1)
        self.run(3)

    def run(self, steps: int) -> None:
        """Trains on, and returns when all of it is computed."""
        for turn in range(steps):
            text = self._texts[turn % len(self._texts)]
            self._state, loss = self._step(self._state, text, self._repeats, shape=self._shape)
            if turn % _LOOKED_AT == _LOOKED_AT - 1:
                float(loss)
        float(loss)

    def repeat(self, count: int) -> float:
        """Passes of each further step."""
        self._repeats = np.int32(count)
        self.run(1)
        return float(count)

    def passes_of(self, milliseconds: int) -> float:
        """How many passes a step of about that length has."""
        count, wanted = 1, milliseconds / 1e3
        while True:
            self.repeat(count)
            began = time.perf_counter()
            self.run(3)
            taken = (time.perf_counter() - began) / 3
            if taken > 0.9 * wanted:
                return float(count)
            count = max(count + 1, round(count * min(wanted / taken, 4)))


def main() -> None:
    """Measures until the input closes."""
    where, size = sys.argv[1:]
    decorate: Any
    if where == "jit":
        from jax import jit as decorate
    else:
        from jaxd import connect

        decorate = connect(where).persistent_call
    loop = Loop(decorate, SHAPES[size])
    answer_requests(
        {
            "step": measure_throughput(loop.run),
            "repeats": loop.repeat,
            "passes": loop.passes_of,
        }
    )


if __name__ == "__main__":
    main()
