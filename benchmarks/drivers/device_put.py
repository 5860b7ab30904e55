"""What jax alone takes for the way to the device and back, in this process: `device_put BYTES`."""

from __future__ import annotations

import sys
import time
from statistics import median

import jax
import numpy as np

from benchmarks.answering import answer_requests, measure_median


class Moves:
    """One large array of float32, as the driver of transfers has it."""

    def __init__(self, nbytes: int) -> None:
        self._plain = np.random.default_rng(0).random(nbytes // 4, np.float32)
        self._made = jax.jit(lambda x: jax.numpy.full(nbytes // 4, x))
        self._turn = 0

    def put(self) -> None:
        """To the device; another array each time."""
        self._turn += 1
        self._plain[self._turn % 8] = self._turn
        jax.device_put(self._plain, may_alias=False).block_until_ready()

    def fetch(self, calls: int) -> float:
        """Seconds until an array of the device is here, p50; making it is not counted."""
        taken = []
        for turn in range(calls):
            array = self._made(float(turn)).block_until_ready()
            began = time.perf_counter_ns()
            found = np.array(array)
            taken.append((time.perf_counter_ns() - began) / 1e9)
            assert found[-1] == turn
        return median(taken)


def main() -> None:
    """Measures until the input closes."""
    moves = Moves(int(sys.argv[1]))
    moves.put()
    answer_requests({"put": measure_median(moves.put), "fetch": moves.fetch})


if __name__ == "__main__":
    main()
