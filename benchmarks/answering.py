"""The driver's side of a measurement: time calls when asked, answer in one JSON line."""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

Measurement = Callable[[int], float]
"""Takes a number of calls, makes them and returns seconds, or what else a row is about."""


def median_seconds(call: Callable[[], object], calls: int) -> float:
    """The p50 of `calls` calls, one after another, in seconds."""
    return statistics.median(_seconds_of(call, calls))


def _seconds_of(call: Callable[[], object], calls: int) -> list[float]:
    clock = time.perf_counter_ns
    taken = []
    for _ in range(calls):
        began = clock()
        call()
        taken.append((clock() - began) / 1e9)
    return taken


def measure_median(call: Callable[[], object]) -> Measurement:
    """Measures the p50 of single calls."""
    return lambda calls: median_seconds(call, calls)


def measure_p99(call: Callable[[], object]) -> Measurement:
    """Measures the time that one call in a hundred exceeds."""
    return lambda calls: statistics.quantiles(_seconds_of(call, calls), n=100)[98]


def measure_throughput(make: Callable[[int], object]) -> Measurement:
    """Measures the mean of calls that `make` makes all at once, in seconds per call."""

    def mean_seconds(calls: int) -> float:
        began = time.perf_counter_ns()
        make(calls)
        return (time.perf_counter_ns() - began) / 1e9 / calls

    return mean_seconds


def answer_requests(measurements: Mapping[str, Measurement]) -> None:
    """Says that the driver is ready, then measures what it is asked for until input closes."""
    send_line({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        send_line({"figure": measurements[request["measure"]](request["calls"])})


def report_skipped(why: str) -> NoReturn:
    """Says why there is nothing to measure here, and ends the driver."""
    send_line({"left_out": why})
    sys.exit()


def serve_until_input_closes(serve: Callable[[], object], **greeting: Any) -> None:
    """Runs `serve` in the background, prints `greeting`, and exits when input closes.

    So a peer never outlives the benchmark that started it, however that ended.
    """
    threading.Thread(target=serve, daemon=True).start()
    send_line(greeting)
    sys.stdin.read()
    os._exit(0)


def send_line(message: Mapping[str, Any]) -> None:
    """Writes one JSON line to the parent."""
    print(json.dumps(message), flush=True)
