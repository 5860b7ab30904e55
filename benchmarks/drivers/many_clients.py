"""Many clients in one process, each with a connection of its own: `many_clients ADDRESS COUNT`."""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np

from benchmarks.answering import answer_requests, measure_median, measure_p99
from benchmarks.curves.process_facts import resident_bytes
from benchmarks.drivers.jaxd_calls import affine
from jaxd import connect
from jaxd.errors import CompileAdvice


def main() -> None:
    """Measures until the input closes."""
    warnings.simplefilter("ignore", CompileAdvice)  # one function for many clients is meant here
    clients = [connect(sys.argv[1]) for _ in range(int(sys.argv[2]))]
    calls = [client.persistent_call(affine) for client in clients]
    x = np.ones(16, np.float32)
    for _ in range(3):
        for call in calls:
            assert np.asarray(call(x))[0] == 3.0
    first = calls[0]

    def rate(milliseconds: int) -> float:
        """Calls in a second, of all clients one after another."""
        began, made = time.perf_counter(), 0
        until = began + milliseconds / 1e3
        while time.perf_counter() < until:
            for call in calls:
                np.asarray(call(x))
            made += len(calls)
        return made / (time.perf_counter() - began)

    answer_requests(
        {
            "p50": measure_median(lambda: np.asarray(first(x))),
            "p99": measure_p99(lambda: np.asarray(first(x))),
            "rate": rate,
            "memory": lambda _: float(resident_bytes()),
        }
    )


if __name__ == "__main__":
    main()
