"""What making an executable cost, in traces, lowerings, compilations and loads."""

from __future__ import annotations

from typing import Any, Final

from tests.server.in_process import PipelineHarness

COUNTERS: Final = ("traces", "lowers", "compiles", "executable_loads", "programs_shared")

BUILT: Final = dict(zip(COUNTERS, (1, 1, 1, 0, 0), strict=True))
"""Made from the beginning."""

SHARED: Final = dict(zip(COUNTERS, (1, 1, 0, 0, 1), strict=True))
"""Traced and lowered, and then found to be a program that is there."""

LOADED: Final = dict(zip(COUNTERS, (0, 0, 0, 1, 0), strict=True))
"""Read from disk."""


def counts(harness: PipelineHarness) -> dict[str, int]:
    """What this harness has done so far."""
    snapshot = harness.counters.snapshot()
    return {name: int(snapshot[name]) for name in COUNTERS}


def double(x: Any) -> Any:
    """Is called in tests."""
    return x * 2 + 17
