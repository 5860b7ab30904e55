"""Small calls of a client of jaxd without jax: `jaxd_calls ADDRESS`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_median, measure_p99, measure_throughput
from jaxd import persistent_call

WINDOW = 64
"""Calls in flight at a time when they are submitted."""


def affine(x: Any) -> Any:
    """The small function: what it computes costs nothing."""
    return x * 2.0 + 1.0


def submit_all(submit: Callable[[Any], Future[Any]], x: Any, calls: int) -> None:
    """Makes `calls` calls, at most `WINDOW` of them in flight."""
    pending: deque[Future[Any]] = deque()
    for _ in range(calls):
        if len(pending) == WINDOW:
            pending.popleft().result()
        pending.append(submit(x))
    while pending:
        pending.popleft().result()


def main() -> None:
    """Measures until the input closes."""
    small = persistent_call(affine, server=sys.argv[1])
    x = np.ones(16, np.float32)
    assert np.asarray(small(x)).tolist() == [3.0] * 16
    answer_requests(
        {
            "small": measure_median(lambda: np.asarray(small(x))),
            "small, p99": measure_p99(lambda: np.asarray(small(x))),
            "one at a time": measure_throughput(lambda calls: [small(x) for _ in range(calls)]),
            "submit": measure_throughput(lambda calls: submit_all(small.submit, x, calls)),
            "map": measure_throughput(lambda calls: deque(small.map([x] * calls), maxlen=0)),
        }
    )


if __name__ == "__main__":
    main()
