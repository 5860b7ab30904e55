"""What there is to see of a worker: collected when somebody looks, and only what has changed.

A call notes the executable that has answered it, if that is not noted yet; rows are made of those
that were noted since the last collection. So ten thousand programs that rest cost nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol import __version__
from jaxd_protocol.messages.server_view import (
    MAX_LARGEST,
    BuilderRow,
    BuildRow,
    CallRow,
    DeviceRow,
    QueueRow,
    ServerRow,
    SessionRow,
    ValueRow,
    WorkerRow,
    row_dict,
)
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.history.build_log import BuildRecord
from jaxd_server.compilation.remote_build.policy import BuildPolicy
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Operation
from jaxd_server.execution.call import Call
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.rpc.inflight_calls import InflightCall
from jaxd_server.rpc.services.inventory import ProgramRows, arguments_text
from jaxd_server.rpc.sessions import Session, Sessions
from jaxd_server.rpc.worker_context import WorkerContext
from jaxd_server.runtime.logs import MAX_EVENTS
from jaxd_server.runtime.view_journal import (
    HEARTBEAT_S,
    ROWS_AT_ONCE,
    Journal,
    News,
    resident_steps,
    take_events,
)
from jaxd_server.values.value import SessionValues

LEAST_AGE_S: Final = 0.05
"""A call that has not taken so long is in no table; nor is one collection so soon after another."""

_SAME_S: Final = 0.1
_MAX_LOOKED_AT: Final = 2000

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
        return self._message(self.journal.news(since, source, most))

    def _message(self, news: News) -> dict[str, Any]:
        message = news.to_message()
        message["more"] = news.has_more or self.programs.has_due
        return message

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

        message = self._message(self.journal.news(since, source, ROWS_AT_ONCE, shows))
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
                if self.programs.has_due:
                    self.programs.collect()
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
        worker = WorkerRow(
            self.epoch,
            os.getpid(),
            "draining" if self.pipeline.admission.draining else "ready",
            self.principal,
            time.time() // HEARTBEAT_S * HEARTBEAT_S,
            max(0, self.epoch - 1),
            resident_steps(os.getpid()),
        )
        self.journal.put("workers", str(self.epoch), row_dict(worker))

    def _collect_builders(self) -> None:
        rows = {
            str(one.pid): row_dict(BuilderRow(one.pid, one.function, self.wall(one.since)))
            for one in self._seen.building.builders.all()
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
        rows = {self._numbered(one.number): self._build_row(one) for one in records}
        self.journal.replace("builds", rows)

    def _numbered(self, number: int) -> str:
        """A name that no other worker gives."""
        return f"{self.epoch}.{number}"

    def _build_row(self, one: BuildRecord) -> dict[str, Any]:
        known: dict[str, Any] | None = self.journal.get("builds", self._numbered(one.number))
        if known and known["finished"]:
            return known
        one.look()
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
        self._last_event = take_events(self.journal, self.epoch, self._last_event)
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
        session.process,
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
    largest = held[:MAX_LARGEST]
    shapes = tuple(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf, _ in largest)
    sizes = tuple(nbytes for _, nbytes in largest)
    total = sum(nbytes for _, nbytes in held)
    return row_dict(ValueRow(principal, holder, kind, len(held), total, shapes, sizes))
