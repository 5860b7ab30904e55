"""Calls on a pool that one server could not make as fast: `pool_calls ADDRESS BLOCKS`.

`map`: functions that wait, and take no processor time. `first` and `built`: a new train step, which
one member builds (`built`) and another one answers for the first time then (`first`).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_throughput
from benchmarks.programs.train import make_arguments, train_step
from jaxd import Client, connect


def waiting(x: Any) -> Any:
    """Its argument, after a while."""
    import time

    import jax

    def wait(value: Any) -> Any:
        time.sleep(0.05)
        return value

    return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


class FirstCalls:
    """Train steps that nobody has built, each on one member and then on another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._arguments = make_arguments()
        self._count = 0

    def built(self, _: int) -> float:
        """Seconds until the first member has built one and answered."""
        return self._seconds("m1", self._new())

    def first(self, _: int) -> float:
        """Seconds until the second member has answered what the first one has built."""
        function = self._new()
        self._seconds("m1", function)
        return self._seconds("m2", function)

    def _new(self) -> Any:
        self._count += 1
        return self._client.persistent_call(_step(self._count))

    def _seconds(self, member: str, function: Any) -> float:
        began = time.perf_counter_ns()
        float(function.on(member=member)(*self._arguments))
        return (time.perf_counter_ns() - began) / 1e9


def _step(count: int) -> Any:
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        return train_step(params, momentum, x * count, y)[0]

    return step


def main() -> None:
    """Measures until the input closes."""
    client = connect(sys.argv[1])
    wait, x = client.persistent_call(waiting), np.ones(1, np.float32)
    first = FirstCalls(client)
    answer_requests(
        {
            "map": measure_throughput(lambda calls: deque(wait.map([x] * calls), maxlen=0)),
            "first": first.first,
            "built": first.built,
        }
    )


if __name__ == "__main__":
    main()
