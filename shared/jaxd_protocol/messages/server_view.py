"""What there is to see of a server, as plain data: tables, dashboards and metrics show parts of it.

Rows stand in tables under a short text that names them for as long as they exist. All times are
absolute (`time.time()` of the server), so that a row that nothing happens to does not change. What
has changed travels as a JSON merge patch (RFC 7386) of `ServerView.to_dict`: null removes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from jaxd_protocol.base.terminal import printable
from jaxd_protocol.errors import ProtocolError

LEAST_S: Final = 0.1
MOST_S: Final = 60.0
"""How often whoever watches is told what has changed, at most and at least."""

MAX_LARGEST: Final = 8
"""Arrays of one holder that are shown by themselves."""

LATENCY_BOUNDS_S: Final = tuple(1e-5 * 2**step for step in range(24))
"""Upper bounds of the classes of a latency histogram; one more class has what took longer."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """The server itself: its host process.

    Attributes:
        address: the first one that it listens on.
        version: of jaxd.
        pid: of the host.
        since: when it was started; over an address of the network, when its worker was.
        listen: its addresses.
        log: its log file; empty when there is none.
        quarantined: how many functions are refused because they ended workers.
        platform: ``cpu``, ``gpu`` or ``tpu``; empty until a worker is ready.
    """

    address: str = ""
    version: str = ""
    pid: int = 0
    since: float = 0.0
    listen: tuple[str, ...] = ()
    log: str = ""
    quarantined: int = 0
    platform: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process that owns the devices, under its number.

    Attributes:
        epoch: its number.
        pid: of the process; 0 when there is none.
        state: ``starting``, ``ready``, ``busy``, ``stuck``, ``resting``, ``draining``, ``broken``.
        principal: whose worker it is, where each principal has one.
        answered: when it has last answered its host, to ten seconds as long as it does.
        restarts: how often it was replaced.
        resident_bytes: memory of the process.
        why: why it is broken.
    """

    epoch: int = 0
    pid: int = 0
    state: str = "starting"
    principal: str = ""
    answered: float = 0.0
    restarts: int = 0
    resident_bytes: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class BuilderRow:
    """A process that traces and compiles, under its process id.

    Attributes:
        pid: of the process.
        function: whose program it makes; empty when it makes none.
        since: since when it does.
    """

    pid: int = 0
    function: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A client process, under the first letters of its session's id.

    Attributes:
        principal: who it is.
        process: its process id, as it says itself; empty when unknown.
        since: when it connected first.
        connections: open ones.
        calls: those that were answered.
        compiled: programs that were traced and compiled for one of them.
        loaded: programs that were loaded from disk for one of them.
        found: programs that were there when it used them first.
        saved_s: seconds of tracing and compiling that `loaded` and `found` have spared it.
    """

    principal: str = ""
    process: str = ""
    since: float = 0.0
    connections: int = 0
    calls: int = 0
    compiled: int = 0
    loaded: int = 0
    found: int = 0
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call in flight, under its call id; none that is over within a twentieth of a second.

    Attributes:
        function: its name; in parentheses that of another request.
        principal: whose call it is.
        phase: ``waiting``, ``building`` or ``running``; ``left behind`` when nobody waits for it.
        since: when the call arrived.
        phase_since: when the phase began.
        behind: what it waits behind; empty when for nothing.
        behind_since: since when that has been worked on.
    """

    function: str = ""
    principal: str = ""
    phase: str = "running"
    since: float = 0.0
    phase_since: float = 0.0
    behind: str = ""
    behind_since: float = 0.0


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A program that was made or is being made, under its number.

    Attributes:
        function: whose program.
        key: its key in hex digits.
        principal: for whom.
        verdict: ``compile``, ``load`` or ``failed``, and ``building`` as long as it lasts.
        queued: when it was asked for.
        started: when the work began; 0 while it waits.
        finished: when it was ready; 0 before that.
        behind: the function that it waited for; empty when for none.
        reason: why it was made, one line.
        arguments: of the call, as ``x: float32[3,4]``.
        builder: the process that made it; 0: the worker.
    """

    function: str = ""
    key: str = ""
    principal: str = ""
    verdict: str = "building"
    queued: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    behind: str = ""
    reason: str = ""
    arguments: str = ""
    builder: int = 0


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function with options, under its key in hex digits.

    Attributes:
        name: of the function.
        where: file and line; empty when unknown.
        programs: how many are in memory.
        hits: calls that a program in memory answered.
        compiled: programs that were traced and compiled.
        loaded: programs that came from disk.
        saved_s: seconds of tracing and compiling that were spared.
        built_s: seconds that tracing and compiling took.
        run_s: seconds that these calls took in the server.
        latency: these calls by that time: a count for each of `LATENCY_BOUNDS_S`, and one more.
        last_use: when it was called last.
    """

    name: str = ""
    where: str = ""
    programs: int = 0
    hits: int = 0
    compiled: int = 0
    loaded: int = 0
    saved_s: float = 0.0
    built_s: float = 0.0
    run_s: float = 0.0
    latency: tuple[int, ...] = ()
    last_use: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """An executable for one signature, under its name in hex digits.

    Attributes:
        function: key of its function in hex digits.
        name: of the function.
        arguments: as ``x: float32[3,4]``.
        state: ``memory`` or ``disk``.
        host_bytes: by how much the process grew for it.
        device_bytes: what it takes on the device.
        disk_bytes: its room on disk; 0 when it is not kept there.
        build_s: seconds that tracing and compiling took.
        load_s: seconds that reading it from disk took.
        calls: that it answered.
        saved_s: seconds that it spared.
        last_use: when it was called last; of one on disk, when it was used last.
    """

    function: str = ""
    name: str = ""
    arguments: str = ""
    state: str = "memory"
    host_bytes: int = 0
    device_bytes: int = 0
    disk_bytes: int = 0
    build_s: float = 0.0
    load_s: float = 0.0
    calls: int = 0
    saved_s: float = 0.0
    last_use: float = 0.0


@dataclass(frozen=True, slots=True)
class ValueRow:
    """Arrays that one holder has on the server, under session or name.

    Attributes:
        principal: whose they are.
        holder: the first letters of the session's id, or the name that they were put under.
        kind: ``session`` or ``name``.
        count: how many.
        nbytes: bytes.
        largest: the largest ones, as ``float32[1024,1024]``, at most eight.
        largest_nbytes: bytes of each of these.
    """

    principal: str = ""
    holder: str = ""
    kind: str = "session"
    count: int = 0
    nbytes: int = 0
    largest: tuple[str, ...] = ()
    largest_nbytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device, under its number.

    Attributes:
        name: as jax names it.
        in_use: bytes in use.
        peak: most bytes that were in use.
        limit: bytes that there are; 0 when the device does not say.
    """

    name: str = ""
    in_use: int = 0
    peak: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Something that work waits in, under its name (``calls``, ``builds``, ``held``).

    Attributes:
        length: how many wait.
        limit: how many may run at once; 0: no limit.
        running: how many run.
    """

    length: int = 0
    limit: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class EventRow:
    """A log event, under its number: errors (`level` ``error`` or ``warning``) and others.

    Attributes:
        at: when.
        name: see docs/log-events.md.
        level: ``info``, ``warning`` or ``error``.
        function: whose it is about; empty when none's.
        call: id of the call; empty when none's.
        principal: whom it concerns; empty when nobody.
        text: its fields, one line.
    """

    at: float = 0.0
    name: str = ""
    level: str = "info"
    function: str = ""
    call: str = ""
    principal: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ServerView:
    """All that one principal may see of a server at one moment.

    Attributes:
        at: when something has changed last.
        sequence: rises with each change.
        server: its host.
        counters: the counts of `jaxd.Statistics`, by name, of all workers.
        workers: processes that own the devices.
        builders: processes that trace and compile.
        sessions: client processes.
        calls: those in flight.
        builds: the last 200, and those under way.
        functions: those that are known.
        programs: in memory and on disk.
        values: arrays that stay on the server.
        devices: what computes.
        queues: what work waits in.
        events: the last 200 of the log, errors among them.
    """

    at: float = 0.0
    sequence: int = 0
    server: ServerRow = field(default_factory=ServerRow)
    counters: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, WorkerRow] = field(default_factory=dict)
    builders: Mapping[str, BuilderRow] = field(default_factory=dict)
    sessions: Mapping[str, SessionRow] = field(default_factory=dict)
    calls: Mapping[str, CallRow] = field(default_factory=dict)
    builds: Mapping[str, BuildRow] = field(default_factory=dict)
    functions: Mapping[str, FunctionRow] = field(default_factory=dict)
    programs: Mapping[str, ProgramRow] = field(default_factory=dict)
    values: Mapping[str, ValueRow] = field(default_factory=dict)
    devices: Mapping[str, DeviceRow] = field(default_factory=dict)
    queues: Mapping[str, QueueRow] = field(default_factory=dict)
    events: Mapping[str, EventRow] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        tables = {
            table: {name: row_dict(row) for name, row in getattr(self, table).items()}
            for table in TABLES
        }
        head = {"at": self.at, "sequence": self.sequence, "server": row_dict(self.server)}
        return {**head, "counters": dict(self.counters), **tables}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` made; what a newer server has beside it is left out.

        Raises:
            ProtocolError: when it is something else.
        """
        return cls().patched(content)

    def patched(self, change: Mapping[str, Any]) -> Self:
        """This view after a change; only the rows that are in the change are made.

        Args:
            change: a merge patch of `to_dict`, as `changed` makes it.

        Raises:
            ProtocolError: when it is something else, or is too large.
        """
        try:
            known = {name: _READERS[name] for name in change if name in _READERS}
            found = {name: read(getattr(self, name), change[name]) for name, read in known.items()}
            return replace(self, **found)
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(
                "what the server shows of itself cannot be read. Install the same jaxd on both "
                "sides."
            ) from error


TABLES: Final[Mapping[str, type]] = {
    "workers": WorkerRow,
    "builders": BuilderRow,
    "sessions": SessionRow,
    "calls": CallRow,
    "builds": BuildRow,
    "functions": FunctionRow,
    "programs": ProgramRow,
    "values": ValueRow,
    "devices": DeviceRow,
    "queues": QueueRow,
    "events": EventRow,
}
"""The tables of a view, and what their rows are."""


def row_dict(row: Any) -> dict[str, Any]:
    """A row for JSON."""
    content = {name: getattr(row, name) for name in _kinds(type(row))}
    return {name: list(value) if type(value) is tuple else value for name, value in content.items()}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7386) that makes `after` of `before`; empty when they are equal."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, new in after.items():
        old = before.get(name)
        if isinstance(new, Mapping) and isinstance(old, Mapping):
            inner = changed(old, new)
            if inner:
                patch[name] = inner
        elif name not in before or old != new:
            patch[name] = new
    return patch


def apply_change(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A view as `to_dict` makes it, after a merge patch."""
    found = {name: value for name, value in content.items() if change.get(name, value) is not None}
    for name, new in change.items():
        if isinstance(new, Mapping):
            old = found.get(name)
            found[name] = apply_change(old if isinstance(old, Mapping) else {}, new)
        elif new is not None:
            found[name] = new
    return found


# reading what may be hostile ----------------------------------------------------------------------

MAX_TEXT: Final = 2000
"""Letters of one field."""
_MAX_NAME: Final = 300
_MAX_ITEMS: Final = 64
MAX_ROWS: Final = 100_000
"""Of one table."""
MAX_NUMBER: Final = 1 << 63
"""Numbers are smaller than this, and greater than its negative."""


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} is no text")
    return printable(value, MAX_TEXT)


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) >= MAX_NUMBER:
        raise TypeError(f"{type(value).__name__} is no whole number")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < MAX_NUMBER:  # which no NaN is
        raise TypeError(f"{type(value).__name__} is no number")
    return float(value)


def read_count(value: Any) -> float:
    """A count, as it is.

    Raises:
        TypeError: when it is no number, or is out of range.
    """
    _float(value)
    count: float = value
    return count


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > _MAX_ITEMS:
            raise TypeError("no list, or a long one")
        return tuple(map(read, value))

    return read_all


_Reader = Callable[[Any], Any]
_OF_TYPES: Final[Mapping[str, _Reader]] = {
    "str": _text,
    "int": _int,
    "bool": bool,
    "float": _float,
    "tuple[str, ...]": _each(_text),
    "tuple[int, ...]": _each(_int),
}


_KINDS: Final[dict[type, Mapping[str, _Reader]]] = {}


def _kinds(row: type) -> Mapping[str, _Reader]:
    """What reads the fields of such rows."""
    found = _KINDS.get(row)
    if found is None:
        found = _KINDS[row] = {one.name: _OF_TYPES[str(one.type)] for one in fields(row)}
    return found


def read_row(row: Any, content: Any) -> Any:
    """A row with the fields of a change; unknown ones are left out.

    Args:
        row: as it was; of a new one, its defaults.
        content: the new fields.

    Raises:
        TypeError: when one has another type, or there are too many.
    """
    kinds = _kinds(type(row))
    found = {name: kinds[name](value) for name, value in content.items() if name in kinds}
    return replace(row, **found)


def _table_reader(kind: type) -> Callable[[Any, Any], dict[str, Any]]:
    fresh = kind()

    def read(old: Mapping[str, Any], content: Any) -> dict[str, Any]:
        found = {} if content is None else dict(old)
        for name, row in _named(content):
            if row is None:
                found.pop(name, None)
            else:
                found[name] = read_row(found.get(name, fresh), row)
        return _bounded(found)

    return read


def _read_counters(old: Mapping[str, float], content: Any) -> dict[str, float]:
    found = {} if content is None else dict(old)
    for name, count in _named(content):
        if count is None:
            found.pop(name, None)
        else:
            found[name] = read_count(count)
    return _bounded(found)


def _named(content: Any) -> Iterable[tuple[str, Any]]:
    rows = {} if content is None else content  # null removes the table
    return [(printable(name, _MAX_NAME), row) for name, row in rows.items()]


def _bounded(found: dict[str, Any]) -> dict[str, Any]:
    if len(found) > MAX_ROWS:
        raise ValueError("too many rows")
    return found


_READERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "at": lambda _, value: _float(value),
    "sequence": lambda _, value: _int(value),
    "server": read_row,
    "counters": _read_counters,
    **{table: _table_reader(kind) for table, kind in TABLES.items()},
}
