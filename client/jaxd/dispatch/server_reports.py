"""What a server reports: its counters, and its devices, of which calls choose one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

from jaxd_protocol.errors import ConfigurationError


class Statistics(NamedTuple):
    """What a server did since its worker started; the names are those of `jaxd status --json`.

    Attributes:
        calls: calls that were answered, the failed ones included.
        failed_calls: calls that ended in an exception.
        cancelled_calls: calls that their clients gave up.
        late_calls: calls whose `timeout_s` passed, or that took longer than the server allows.
        fallback_calls: calls that ran in the process of their client, because the server could not
            answer them, as clients report. They are not among `calls`, unless they were sent.
        fallback_functions: functions of which that was the first such call in its process.
        verified_programs: programs that clients have compared with what they lower themselves, as
            they report; see docs/verify.md.
        stale_programs: those of them that differed.
        incomparable_programs: programs that were to be compared and could not be.
        traces: how often a function was traced.
        lowers: how often what was traced was made into a program.
        compiles: how often XLA compiled a program.
        executable_hits: calls that needed no trace, compile or load.
        executable_loads: executables that were loaded from disk.
        programs_shared: executables that were traced, and whose program there was already: that of
            another function, or one on disk.
        xla_cache_hits: programs that jax found in its own cache on disk.
        executables: executables in memory.
        programs: compiled programs in memory; several executables may share one.
        functions: functions that the server knows.
        values: arrays that are kept for clients.
        connections: open connections.
        bytes_received: by all connections.
        bytes_sent: by all connections.
        disk_bytes: room that is taken on disk by what is kept for this server's machine.
        disk_files: records that are kept there.
        trace_s: seconds that tracing and lowering took.
        compile_s: seconds that compiling took.
        load_s: seconds that loading executables from disk took.
        saved_s: seconds of tracing and compiling that client processes were spared: for each that
            used an executable that it did not have built, what building it had cost, less what
            loading it took.
        waited_s: seconds that calls which could not run at once waited for their turn.
        run_s: seconds that calls ran, the way of their results included.
        uptime_s: seconds since the worker started.
        epoch: the worker's generation: 1 for a server's first one.
    """

    calls: int
    failed_calls: int
    cancelled_calls: int
    late_calls: int
    fallback_calls: int
    fallback_functions: int
    verified_programs: int
    stale_programs: int
    incomparable_programs: int
    traces: int
    lowers: int
    compiles: int
    executable_hits: int
    executable_loads: int
    programs_shared: int
    xla_cache_hits: int
    executables: int
    programs: int
    functions: int
    values: int
    connections: int
    bytes_received: int
    bytes_sent: int
    disk_bytes: int
    disk_files: int
    trace_s: float
    compile_s: float
    load_s: float
    saved_s: float
    waited_s: float
    run_s: float
    uptime_s: float
    epoch: int

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Statistics:
        """The counters out of a server's report, which may hold more."""
        return cls(**{name: report[name] for name in cls._fields})

    def _repr_html_(self) -> str:
        from jaxd.interop.html_views import table, titled  # for notebooks

        rows = [(name, _shown(name, value)) for name, value in self._asdict().items() if value]
        return titled("What the server did", table(("counter", "value"), rows))


def _shown(name: str, value: float) -> str:
    from jaxd_protocol.base.terminal import duration, size

    if name.endswith("_s"):
        return duration(value)
    return size(value) if "bytes" in name else f"{value:,}"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a server, as it was at the time of the question; `f.on(device=…)` takes it.

    Attributes:
        index: its number: `jax.devices()[index]` inside of a function.
        platform: `cpu`, `gpu` or `tpu`.
        kind: what jax calls it, such as `NVIDIA H100 80GB HBM3`.
        bytes_in_use: of its memory; on a CPU, what lies there in arrays.
        bytes_limit: how much it has for arrays and programs; on a CPU, that of the machine.
        sessions: clients that are connected and whose calls run on it, or on one of its group.
        is_yours: whether this client is one of them.
    """

    index: int
    platform: str
    kind: str
    bytes_in_use: int
    bytes_limit: int
    sessions: int
    is_yours: bool

    def __index__(self) -> int:
        return self.index

    @classmethod
    def from_report(cls, row: Mapping[str, Any]) -> Device:
        """Reads what a server answered."""
        return cls(**{name: row[name] for name in cls.__slots__})


class Devices(tuple[Device, ...]):
    """The devices of a server, in jax's order."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from jaxd.interop.html_views import table, titled  # for notebooks
        from jaxd_protocol.base.terminal import size

        head = ("index", "platform", "kind", "in use", "memory", "clients", "yours")
        rows = [
            (
                each.index,
                each.platform,
                each.kind,
                size(each.bytes_in_use),
                size(each.bytes_limit),
                each.sessions,
                "yes" if each.is_yours else "",
            )
            for each in self
        ]
        return titled("Devices", table(head, rows))


def device_index(device: SupportsIndex | None) -> int | None:
    """A device as it stands in a function's options.

    Raises:
        ConfigurationError: when it is no index.
    """
    if device is None:
        return None
    try:
        index = -1 if isinstance(device, bool) else operator.index(device)
    except TypeError:
        index = -1
    if index < 0:
        raise ConfigurationError(
            f"device={device!r} is no device of a server. Give its index, such as 0, or one of "
            "jaxd.devices()."
        )
    return index
