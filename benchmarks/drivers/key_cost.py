"""What the key of one function costs, without a server: `key_cost FUNCTION`.

Imports of our own are done before anything is measured: the row of fresh processes has them.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

import jaxd_protocol.fingerprint.dispatch  # else the first walk would pay for these two imports
import jaxd_protocol.messages.function_manifest
import jaxd_protocol.pickling.pack.functions  # noqa: F401  and the first packing for this one
from benchmarks.answering import answer_requests, median_seconds
from jaxd.interop.jax_runtime import current_config
from jaxd.request.function_snapshot import FunctionSnapshot, SnapshotCache
from jaxd_protocol.jit.options import Options, fingerprint_of

Function = Callable[..., Any]

FUNCTIONS = {
    "small": ("benchmarks.programs.key_small", "affine"),
    "helpers": ("benchmarks.programs.key_small", "ten_helpers"),
    "train": ("benchmarks.programs.key_train", "train_step"),
}


def unchanged(function: Function, calls: int) -> float:
    """The key of a call whose function is as it was at the call before, p50."""
    snapshots, config = SnapshotCache(function, Options(), ()), current_config()
    spec = snapshots.spec(config)
    seconds = median_seconds(lambda: snapshots.spec(config), calls)
    if snapshots.spec(config) is not spec:
        raise AssertionError("the function was taken for another one")
    return seconds


def first(function: Function, _: int) -> float:
    """The first key of a function in a process."""
    snapshots, config = SnapshotCache(function, Options(), ()), current_config()
    return _seconds(lambda: snapshots.spec(config))


def packing(function: Function, _: int) -> float:
    """The bytes of the code, once the key is known."""
    snapshot = FunctionSnapshot(function, Options())
    return _seconds(lambda: snapshot.code)


def hashed_bytes(function: Function, calls: int) -> float:
    """The plain way, p50: the hash of what cloudpickle writes, with the function by value."""
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return median_seconds(lambda: fingerprint_of(cloudpickle.dumps(function)), calls)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - began) / 1e9


def main() -> None:
    """Measures until the input closes."""
    module, name = FUNCTIONS[sys.argv[1]]
    function = getattr(importlib.import_module(module), name)
    measurements = {
        "unchanged": unchanged,
        "first": first,
        "packing": packing,
        "cloudpickle": hashed_bytes,
    }
    answer_requests(
        {name: functools.partial(measure, function) for name, measure in measurements.items()}
    )


if __name__ == "__main__":
    main()
