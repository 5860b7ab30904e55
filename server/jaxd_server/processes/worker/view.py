"""What there is to see of a worker: collected when somebody looks, and only what has changed.

A call notes the executable that has answered it, if that is not noted yet; rows are made of those
that were noted since the last collection. So ten thousand programs that rest cost nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol import __version__
from jaxd_protocol.messages.server_view import (
    BuilderRow,
    BuildRow,
    CallRow,
    DeviceRow,
    EventRow,
    FunctionRow,
    ProgramRow,
    QueueRow,
    ServerRow,
    SessionRow,
    ValueRow,
    WorkerRow,
    row_dict,
)
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.history.build_log import BuildRecord
from jaxd_server.compilation.remote_build.policy import BuildPolicy
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Operation
from jaxd_server.execution.call import Call
from jaxd_server.execution.pipeline import MAX_TOUCHED, Pipeline
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.rpc.inflight_calls import InflightCall
from jaxd_server.rpc.services.inventory import arguments_text
from jaxd_server.rpc.sessions import Session, Sessions
from jaxd_server.rpc.worker_context import WorkerContext
from jaxd_server.runtime.counters import FunctionUse
from jaxd_server.runtime.log_events import EVENTS
from jaxd_server.runtime.logs import MAX_EVENTS, recent_events
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.runtime.view_journal import ROWS_AT_ONCE, Journal
from jaxd_server.values.value import SessionValues

LEAST_AGE_S: Final = 0.05
"""A call that has not taken so long is in no table; nor is one collection so soon after another."""

_SAME_S: Final = 0.1
_MAX_ON_DISK: Final = 10_000
_MAX_LOOKED_AT: Final = 2000
_LOOKED_AT_ONCE: Final = 100
_LARGEST: Final = 8
_TRIES: Final = 50
_MEMORY_STEP: Final = 1 << 20
_HEARTBEAT_S: Final = 10.0

_OWN_EVENTS: Final = frozenset({"built", "call_failed"})
"""Of the log, what a principal that is not the owner may see, where it is about itself."""

_FOR_OWNERS: Final = frozenset({"builders", "queues", "counters"})
_OF_PRINCIPALS: Final = frozenset({"sessions", "calls", "builds", "values", "events"})


@dataclass(frozen=True, slots=True)
class Seen:
    """The components that a view is collected from.

    Attributes:
        options: of the server.
        context: what all connections share.
        sessions: the open sessions.
        compiler: has the queue of builds.
        building: has the builders.
        devices: those that compute.
        status: the counts of the worker, by name.
        own_status: the same as far as a principal may see it.
    """

    options: ServerOptions
    context: WorkerContext
    sessions: Sessions
    compiler: Compiler
    building: BuildPolicy
    devices: Devices
    status: Callable[[], Mapping[str, Any]]
    own_status: Callable[[str], Mapping[str, Any]]


class WorkerView:
    """Collects the rows of one worker. Thread-safe.

    Args:
        seen: where from.

    Attributes:
        journal: the rows.
        programs: the rows of functions and programs.
        epoch: the number of the worker.
        principal: whose worker it is; empty where all share it.
        pipeline: what answers calls.
    """

    def __init__(self, seen: Seen) -> None:
        self.journal = Journal()
        self.epoch = 0
        self._seen = seen
        self.principal = ""
        self.pipeline = seen.context.pipeline
        self._started = time.time()
        self._offset = time.time() - time.monotonic()
        self._collected_at = 0.0
        self.programs = ProgramRows(self.pipeline, self.journal, self.wall)
        self._last_event = 0
        self._settled: set[int] = set()
        self._used: dict[str, tuple[float, ...]] = {}
        self._counted: dict[str, tuple[int, ...]] = {}
        self._parts = (
            self._collect_counters,
            self.programs.collect,
            self._collect_worker,
            self._collect_builders,
            self._collect_sessions,
            self._collect_calls,
            self._collect_builds,
            self._collect_values,
            self._collect_devices,
            self._collect_queues,
            self._collect_events,
        )
        self._lock = threading.Lock()  # held by the one thread that collects

    def wall(self, monotonic: float) -> float:
        """A time of `time.monotonic()` as one of `time.time()`, to the millisecond."""
        return round(self._offset + monotonic, 3)

    def news(self, since: int, source: str, most: int = ROWS_AT_ONCE) -> dict[str, Any]:
        """What has changed, for the host; see `Journal.news`."""
        self._collect()
        return self.journal.news(since, source, most).to_message()

    def news_for(self, principal: str, since: int, source: str) -> dict[str, Any]:
        """The same as far as a principal may see it, with the counts that are its own."""
        known = self.pipeline.build_log.known_functions
        if known.is_owner(principal):
            return self.news(since, source)
        self._collect()
        sees = known.visibility(principal)

        def shows(table: str, name: str, row: Any) -> bool:
            if table in _FOR_OWNERS:
                return False
            if table in _OF_PRINCIPALS:
                own = row is not None and row["principal"] == principal
                return own and (table != "events" or row["name"] in _OWN_EVENTS)
            if table in ("functions", "programs"):
                key = name if table == "functions" else (row or {}).get("function", "")
                return sees(bytes.fromhex(key))
            return True

        message = self.journal.news(since, source, ROWS_AT_ONCE, shows).to_message()
        content = message.get("view") or message["change"]
        for table in {"calls", "builds"} & content.keys():  # names of others are not for them
            rows = content[table].items()
            content[table] = {name: row and {**row, "behind": ""} for name, row in rows}
        content["counters"] = _numbers(self._seen.own_status(principal))
        return message

    def cancel(self, call: str, principal: str) -> bool:
        """Cancels a call as its client could; whether it could be cancelled.

        Args:
            call: its id.
            principal: who asks: of its own calls, or as the owner of the server.
        """
        is_owner = self.pipeline.build_log.known_functions.is_owner(principal)
        for one in self.pipeline.admission.operations():
            if not isinstance(one, InflightCall) or one.id != call:
                continue
            if is_owner or one.session.principal == principal:
                one.cancel()
                return one.cancel_token.error is not None
        return False

    def _collect(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._collected_at < LEAST_AGE_S:
                return
            for part in self._parts:
                part()
            self._collected_at = time.monotonic()

    def _collect_counters(self) -> None:
        self.journal.replace("counters", _numbers(self._seen.status()))

    def _collect_worker(self) -> None:
        platform = self._seen.devices.platform
        listen = tuple(map(str, self._seen.options.listen))
        server = ServerRow(
            listen[0], __version__, os.getppid(), self._started, listen, "", 0, platform
        )
        self.journal.put("server", "", row_dict(server))
        resident = resident_bytes(os.getpid()) // _MEMORY_STEP * _MEMORY_STEP
        worker = WorkerRow(
            self.epoch,
            os.getpid(),
            "draining" if self.pipeline.admission.draining else "ready",
            self.principal,
            time.time() // _HEARTBEAT_S * _HEARTBEAT_S,
            max(0, self.epoch - 1),
            resident,
        )
        self.journal.put("workers", str(self.epoch), row_dict(worker))

    def _collect_builders(self) -> None:
        rows = {
            str(one.pid): row_dict(BuilderRow(one.pid, one.function, self.wall(one.since)))
            for one in self._seen.building.builders()
            if one.pid
        }
        self.journal.replace("builders", rows)

    def _collect_sessions(self) -> None:
        there: dict[str, tuple[float, ...]] = {}
        for session in self._seen.sessions.all():
            use, name = session.use, session.id[:8]
            now = (session.connections, use.calls, use.compiled, use.loaded, use.found)
            there[name] = now
            if self._used.get(name) != now:
                self.journal.put("sessions", name, _session_row(session))
        for name in self._used.keys() - there.keys():
            self.journal.put("sessions", name, None)
        self._used = there

    def _collect_calls(self) -> None:
        before = time.monotonic() - LEAST_AGE_S
        running = self.pipeline.admission.operations()
        self.journal.replace(
            "calls", dict(self._call_row(one) for one in running if one.started < before)
        )

    def _call_row(self, one: Operation) -> tuple[str, dict[str, Any]]:
        token = one.cancel_token
        name, principal = f"o{id(one) & 0xFFFFFFFF:x}", ""
        if isinstance(one, Call):
            name, principal = one.identify(), one.session.principal
        phase_since = one.started
        phase = "running"
        if isinstance(one, InflightCall):
            phase, phase_since = token.phase, max(one.started, token.phase_since)
        row = row_dict(
            CallRow(
                one.name,
                principal,
                "left behind" if one.is_abandoned else phase,
                self.wall(one.started),
                self.wall(phase_since),
                *self._behind(one, self.journal.get("calls", name)),
            )
        )
        return name, row

    def _behind(self, one: Operation, known: Mapping[str, Any] | None) -> tuple[str, float]:
        """What a call waits behind, and since when that goes on: to the same time as before."""
        first = one.cancel_token.waits_behind()
        if first is None:
            return "", 0.0
        since = self.wall(time.monotonic() - first[2])
        if known and known["behind"] == first[0] and abs(known["behind_since"] - since) < _SAME_S:
            since = known["behind_since"]
        return first[0], since

    def _collect_builds(self) -> None:
        records = list(self.pipeline.build_log.records)
        there = {self._numbered(one.number) for one in records}
        for name in self.journal.names("builds"):
            if name not in there:
                self.journal.put("builds", name, None)
        self._settled &= {one.number for one in records}
        for one in records:
            if one.number not in self._settled:
                if one.finished:
                    self._settled.add(one.number)
                self.journal.put("builds", self._numbered(one.number), self._build_row(one))

    def _numbered(self, number: int) -> str:
        """A name that no other worker gives."""
        return f"{self.epoch}.{number}"

    def _build_row(self, one: BuildRecord) -> dict[str, Any]:
        one.look()
        known = self.journal.get("builds", self._numbered(one.number))
        arguments = known["arguments"] if known else arguments_text(one.skeleton, one.parameters)
        return row_dict(
            BuildRow(
                one.function,
                one.key.hex(),
                one.principal,
                one.verdict,
                round(one.queued, 3),
                round(one.started, 3),
                round(one.finished, 3),
                one.behind,
                one.reason,
                arguments,
                one.builder,
            )
        )

    def _collect_values(self) -> None:
        values = self._seen.context.values
        rows: dict[str, dict[str, Any]] = {}
        counted: dict[str, tuple[int, ...]] = {}
        named = values.named_values()
        elsewhere = {id(each) for _, _, found in named for each in found}
        for session in self._seen.sessions.all():
            own = session.values
            name = f"session {session.id[:8]}"
            counted[name] = (own.nbytes, len(own.values), len(own.batches), len(elsewhere))
            if own.nbytes and counted[name] == self._counted.get(name):
                rows[name] = self.journal.get("values", name)
            elif own.nbytes:
                rows[name] = _values_row(
                    own.principal, session.id[:8], "session", _held_by(own, elsewhere)
                )
        for principal, name, found in named:
            held = [(each.leaf, each.nbytes) for each in found]
            rows[f"name {principal} {name}"] = _values_row(principal, name, "name", held)
        self._counted = counted
        kept = {name: row for name, row in rows.items() if row and row["count"]}
        self.journal.replace("values", kept)

    def _collect_devices(self) -> None:
        rows = {
            str(index): row_dict(DeviceRow(*found))
            for index, found in enumerate(self._seen.devices.memory())
        }
        self.journal.replace("devices", rows)

    def _collect_queues(self) -> None:
        context, options, room = self._seen.context, self._seen.options, self._seen.compiler.room
        running = len(self.pipeline.admission.operations())
        rows = {
            "calls": QueueRow(len(context.runners), options.threads, running),
            "builds": QueueRow(len(room), options.builds, room.running),
            "held": QueueRow(len(context.backlog), options.max_calls, 0),
        }
        self.journal.replace("queues", {name: row_dict(row) for name, row in rows.items()})

    def _collect_events(self) -> None:
        for event in recent_events.after(self._last_event):
            self._last_event = event.number
            fields = {k: str(event.fields.get(k) or "") for k in ("function", "call", "principal")}
            row = EventRow(
                round(event.at, 3), event.name, EVENTS[event.name].level, **fields, text=event.text
            )
            self.journal.put("events", self._numbered(event.number), row_dict(row))
        self.journal.trim("events", MAX_EVENTS)


def _numbers(status: Mapping[str, Any]) -> dict[str, float]:
    """The counts of a status; not those that change when nothing happens."""
    return {
        name: value
        for name, value in status.items()
        if type(value) in (int, float) and name not in _RUNNING_ON
    }


_RUNNING_ON: Final = frozenset({"uptime_s", "idle_s", "epoch", "idle_connections"})


def _session_row(session: Session) -> dict[str, Any]:
    use = session.use
    row = SessionRow(
        session.principal,
        "",
        round(session.since, 3),
        session.connections,
        use.calls,
        use.compiled,
        use.loaded,
        use.found,
        round(use.saved_s, 6),
    )
    return row_dict(row)


def _held_by(own: SessionValues, elsewhere: Container[int]) -> list[tuple[Any, int]]:
    """Leaf and bytes of what a session holds, but for what has a name; of very much a part."""
    with own.lock:
        singles, batches = list(own.values.values()), list(own.batches.values())
    unnamed = [each for each in singles if id(each) not in elsewhere]
    held = [(each.leaf, each.nbytes) for each in unnamed[:_MAX_LOOKED_AT]]
    for batch in batches[:_MAX_LOOKED_AT]:
        leaves = zip(batch.leaves, list(batch.arrays), strict=False)
        held += [(leaf, leaf.nbytes) for leaf, array in leaves if array is not None]
    return held


def _values_row(
    principal: str, holder: str, kind: str, held: Iterable[tuple[Any, int]]
) -> dict[str, Any]:
    held = sorted(held, key=lambda each: -each[1])
    largest = held[:_LARGEST]
    shapes = tuple(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf, _ in largest)
    sizes = tuple(nbytes for _, nbytes in largest)
    total = sum(nbytes for _, nbytes in held)
    return row_dict(ValueRow(principal, holder, kind, len(held), total, shapes, sizes))


class ProgramRows:
    """The rows of functions and programs: made anew for what was noted, and what came or went.

    Args:
        pipeline: what answers calls.
        journal: takes the rows.
        wall: makes times absolute.

    Attributes:
        made: how many rows were made.
    """

    def __init__(
        self, pipeline: Pipeline, journal: Journal, wall: Callable[[float], float]
    ) -> None:
        self.made = 0
        self._pipeline = pipeline
        self._journal = journal
        self._wall = wall
        self._version = -1
        self._here: dict[str, bytes] = {}  # the keys of executables in memory, by row
        self._in_memory: Counter[bytes] = Counter()
        self._unwritten: dict[str, tuple[int, bytes]] = {}  # rows that are about to be on disk
        self._on_disk: deque[str] = deque()  # rows that may be of no program in memory
        self._has_read = False
        self._found: deque[tuple[str, ProgramRow]] = deque()  # on disk, for the next collections

    def collect(self) -> None:
        """Makes the rows that are due."""
        if not self._has_read:
            self._has_read = True
            threading.Thread(target=self._read_disk, name="jaxd-view", daemon=True).start()
        programs, functions = self._noted()
        if self._version != self._pipeline.executables.version:
            self._compare(programs, functions)
        for name, executable in programs.items():
            self._put_program(name, executable)
        for use in functions.values():
            self._put_function(use)
        self._take_found()
        self._look_for_files()
        self._look_for_removed()

    def _noted(self) -> tuple[dict[str, Executable], dict[bytes, FunctionUse]]:
        """The executables of which something was counted, and their functions."""
        touched = self._pipeline.touched
        programs: dict[str, Executable] = {}
        functions: dict[bytes, FunctionUse] = {}
        if len(touched) >= MAX_TOUCHED:
            self._version = -1
        while touched:
            reference, use = touched.popleft()
            executable = reference()
            if executable is not None:
                executable.is_touched = False
                programs[executable.id] = executable
            if use is not None:
                functions[use.key] = use
        return programs, functions

    def _compare(
        self, programs: dict[str, Executable], functions: dict[bytes, FunctionUse]
    ) -> None:
        """Adds to what is due what has come into memory, and removes what is not there any more."""
        is_first = self._version < 0
        self._version = self._pipeline.executables.version
        there = {one.id: one for one in self._pipeline.executables.all()}
        programs |= {name: one for name, one in there.items() if is_first or name not in self._here}
        for name in self._here.keys() - there.keys():
            programs.pop(name, None)
            self._leave_memory(name)
        for name in programs.keys() - there.keys():
            del programs[name]  # it was dropped since
        counted = Counter(one.key for one in there.values())
        uses = self._pipeline.counters.functions
        keys = (counted - self._in_memory) + (self._in_memory - counted)
        self._here = {name: one.key for name, one in there.items()}
        self._in_memory = counted
        for key in set(uses) if is_first else keys:
            use = uses.get(key)
            if use is not None:
                functions[key] = use

    def _leave_memory(self, name: str) -> None:
        """The program is on disk now, or gone."""
        row = self._journal.get("programs", name)
        if row is None:
            return
        gone = {**row, "state": "disk", "host_bytes": 0, "device_bytes": 0}
        self._journal.put("programs", name, gone if row["disk_bytes"] else None)
        if row["disk_bytes"]:
            self._on_disk.append(name)

    def _put_program(self, name: str, executable: Executable) -> None:
        self.made += 1
        known = self._journal.get("programs", name) or {}
        arguments, disk_bytes = known.get("arguments", ""), known.get("disk_bytes", 0)
        use, program = executable.use, executable.program
        if not arguments:
            parameters = () if use is None else use.parameters
            arguments = arguments_text(executable.recorded.skeleton, parameters)
        if executable.kept_as and not disk_bytes:
            self._unwritten[name] = _TRIES, program.id
        row = ProgramRow(
            executable.key.hex(),
            executable.name,
            arguments,
            "memory",
            program.host_bytes,
            program.device_bytes,
            disk_bytes,
            round(executable.costs.build_s, 6),
            round(program.load_s, 6),
            executable.calls,
            round(executable.saved_s, 6),
            self._wall(executable.last_use),
        )
        self._journal.put("programs", name, row_dict(row))

    def _put_function(self, use: FunctionUse) -> None:
        self.made += 1
        row = FunctionRow(
            use.name,
            use.where,
            self._in_memory[use.key],
            use.hits,
            use.compiled,
            use.loaded,
            round(use.saved_s, 6),
            round(use.built_s, 6),
            round(use.run_s, 6),
            tuple(use.latency),
            self._wall(use.last_use) if use.last_use else 0.0,
        )
        self._journal.put("functions", use.key.hex(), row_dict(row))

    def _take_found(self) -> None:
        for _ in range(min(len(self._found), ROWS_AT_ONCE)):
            name, row = self._found.popleft()
            if self._journal.get("programs", name) is None:
                self._journal.put("programs", name, row_dict(row))
                self._on_disk.append(name)

    def _look_for_files(self) -> None:
        """Programs are written to disk a while after they were made."""
        for name, (tries, program) in list(self._unwritten.items()):
            row = self._journal.get("programs", name)
            found = 0 if row is None else self._disk_bytes(name, program)
            self._unwritten[name] = tries - 1, program
            if row is not None and found:
                self._journal.put("programs", name, {**row, "disk_bytes": found})
            if row is None or found or tries <= 1:
                del self._unwritten[name]

    def _look_for_removed(self) -> None:
        """Looks whether the next few programs on disk are there; others may remove them."""
        for _ in range(min(len(self._on_disk), _LOOKED_AT_ONCE)):
            name = self._on_disk.popleft()
            row = self._journal.get("programs", name)
            if row is None or name in self._here:
                continue
            if self._disk_bytes(name):
                self._on_disk.append(name)
            else:
                self._journal.put("programs", name, None)

    def _disk_bytes(self, name: str, program: bytes = b"") -> int:
        """What a call, and its program, take on disk; 0 while the call is not there."""
        cache = self._pipeline.program_cache
        if cache is None:
            return 0
        found = cache.store.room("calls", bytes.fromhex(name.partition(".")[0]))
        return found and found + (cache.store.room("programs", program) if program else 0)

    def _read_disk(self) -> None:
        """Finds what earlier workers have kept; the records are read once."""
        cache = self._pipeline.program_cache
        if cache is None:
            return
        calls = sorted(cache.calls().items(), key=lambda item: -item[1].created)
        for name, call in calls[:_MAX_ON_DISK]:
            row = name.hex()
            kept = 0 if call.obstacle is not None else self._disk_bytes(row, call.program)
            if kept:
                on_disk = ProgramRow(
                    call.key.hex(),
                    call.name,
                    arguments_text(call.skeleton, call.parameters),
                    "disk",
                    disk_bytes=kept,
                    build_s=round(call.trace_s + call.compile_s, 6),
                    last_use=round(call.created, 3),
                )
                self._found.append((row, on_disk))
