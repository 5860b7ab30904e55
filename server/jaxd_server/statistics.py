"""Counters of the whole worker, and the frozen snapshot that people see."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class _Counts:
    calls: int = 0
    traces: int = 0
    lowers: int = 0
    compiles: int = 0
    executable_hits: int = 0
    executable_loads: int = 0
    programs_shared: int = 0
    xla_cache_hits: int = 0
    failed_calls: int = 0
    cancelled_calls: int = 0
    late_calls: int = 0
    waited_s: float = 0.0
    run_s: float = 0.0
    trace_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    saved_s: float = 0.0


class Counters:
    """Counts what the worker did since it started; safe from any thread."""

    def __init__(self) -> None:
        self._counts = _Counts()
        self._lock = threading.Lock()  # guards _counts
        self._started = time.monotonic()
        self._last_activity = self._started

    def add(self, **amounts: float) -> None:
        """Adds to the named counters."""
        with self._lock:
            self._last_activity = time.monotonic()
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    def hit(self, run_s: float = 0.0) -> None:
        """Counts one call that a ready executable answered; the warm path's only counting."""
        with self._lock:
            self._last_activity = time.monotonic()
            self._counts.calls += 1
            self._counts.executable_hits += 1
            self._counts.run_s += run_s

    @property
    def idle_s(self) -> float:
        """Seconds since anything was counted."""
        return time.monotonic() - self._last_activity

    def snapshot(self) -> dict[str, float]:
        """All counters by name, with `uptime_s` in seconds."""
        with self._lock:
            counts = {name: getattr(self._counts, name) for name in _Counts.__slots__}
        return {**counts, "uptime_s": round(time.monotonic() - self._started, 3)}
