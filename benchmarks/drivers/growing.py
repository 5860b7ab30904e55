"""One client without jax that has more and more: `growing functions|values ADDRESS COUNT`."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from benchmarks.answering import Measurement, answer_requests, measure_median
from benchmarks.curves.process_facts import resident_bytes
from benchmarks.drivers.jaxd_calls import affine
from jaxd import Client, connect

_X: Final = np.ones(16, np.float32)
_IN_FLIGHT: Final = 32
_PATIENCE_S: Final = 60.0


def _new(number: int) -> Callable[[Any], Any]:
    def another(x: Any) -> Any:
        return x * 2.0 + number

    return another


def functions(client: Client, count: int) -> dict[str, Measurement]:
    """So many functions that differ, each called once before anything is measured."""
    known = [client.persistent_call(_new(number)) for number in range(count)]
    pending: deque[Future[Any]] = deque()
    for function in known:
        if len(pending) == _IN_FLIGHT:
            pending.popleft().result()
        pending.append(function.submit(_X))
    assert [float(future.result()[0]) for future in pending][-1] == count + 1.0

    def each(calls: int) -> float:
        """Seconds for each of the functions in turn, the oldest first."""
        chosen = known[:calls]
        began = time.perf_counter()
        for function in chosen:
            np.asarray(function(_X))
        return (time.perf_counter() - began) / len(chosen)

    last = known[-1]
    return {
        "small": measure_median(lambda: np.asarray(last(_X))),
        "each": each,
        "executables": lambda _: float(client.statistics().executables),
    }


def values(client: Client, count: int) -> dict[str, Measurement]:
    """So many arrays of 64 bytes on the server, each put there by itself."""
    small = client.persistent_call(affine)
    np.asarray(small(_X))
    kept: list[Any] = [client.put(_X)]
    kept.clear()

    def make(_: int) -> float:
        began = time.perf_counter()
        kept.extend(client.put(_X) for _ in range(count))
        return (time.perf_counter() - began) / count

    def drop(_: int) -> float:
        began = time.perf_counter()
        kept.clear()
        while client.statistics().values and time.perf_counter() < began + _PATIENCE_S:
            pass
        return time.perf_counter() - began

    return {"make": make, "small": measure_median(lambda: np.asarray(small(_X))), "drop": drop}


def main() -> None:
    """Measures until the input closes."""
    kind, address, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    measured = {"functions": functions, "values": values}[kind](connect(address), count)
    answer_requests(measured | {"memory": lambda _: float(resident_bytes())})


if __name__ == "__main__":
    main()
