"""The server's counters, frozen at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Statistics"]


class Statistics(NamedTuple):
    """What a server did since its worker started; the names are those of `jaxd status --json`.

    Attributes:
        calls: calls that were answered, the failed ones included.
        failed_calls: calls that ended in an exception.
        traces: how often a function was traced.
        compiles: how often XLA compiled a program.
        executable_hits: calls that needed neither.
        executable_loads: executables that were loaded from disk.
        executables: executables in memory.
        functions: functions that the server knows.
        values: arrays that are kept for clients.
        connections: open connections.
        bytes_received: by all connections.
        bytes_sent: by all connections.
        build_s: seconds that tracing and compiling took.
        uptime_s: seconds since the worker started.
        epoch: the worker's generation: 1 for a server's first one.
    """

    calls: int
    failed_calls: int
    traces: int
    compiles: int
    executable_hits: int
    executable_loads: int
    executables: int
    functions: int
    values: int
    connections: int
    bytes_received: int
    bytes_sent: int
    build_s: float
    uptime_s: float
    epoch: int

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Statistics:
        """The counters out of a server's report, which may hold more."""
        return cls(**{name: report[name] for name in cls._fields})
