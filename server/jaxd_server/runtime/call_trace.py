"""What the calls of traced connections spend their time on, in spans; other connections have none.

A client says for which trace a connection is recorded, and fetches the spans later, perhaps over
another connection: those of a process that was killed are there still. A trace belongs to a
principal, and holds nothing but its own calls. All times are those of `time.monotonic_ns`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from jaxd_protocol.base.process import clock_id
from jaxd_server.runtime.events import Emit

_MAX_SPANS: Final = 10_000
"""Of one trace that were not fetched yet; the oldest are dropped for new ones."""

_MAX_TRACES: Final = 16
"""Of one principal. For a new one the spans of the one that was used least recently are dropped."""

_MAX_NAMES: Final = 1024
"""Traces of one principal, those included whose spans are only counted."""

_MAX_WAIT_S: Final = 1.0

_OF_STAGES: Final = ("behind", "behind_s", "builder")
"""What an event of a stage says of it."""


class Channel(Protocol):
    """What a connection reads from."""

    def poll(self, timeout: object) -> bool:
        """Whether there is something within so many seconds."""


def clock() -> dict[str, Any]:
    """What this process's clock says now, which clock that is, and the process."""
    return {"clock_ns": time.monotonic_ns(), "clock": clock_id(), "pid": os.getpid()}


class TraceLog:
    """The spans of one trace. Thread-safe."""

    def __init__(self) -> None:
        self._spans: deque[list[Any]] = deque(maxlen=_MAX_SPANS)
        self._threads: dict[int, str] = {}
        self._added = 0
        self._lock = threading.Lock()  # guards all of these

    @property
    def is_kept(self) -> bool:
        """Whether it keeps spans; else it only counts them."""
        return self._spans.maxlen != 0

    @property
    def is_empty(self) -> bool:
        """Whether all that it keeps was fetched."""
        return not self._spans

    def keep(self) -> None:
        """Keeps spans from now on, if it did not."""
        with self._lock:
            self._spans = deque(self._spans, _MAX_SPANS)

    def drop(self) -> None:
        """Drops its spans and keeps none from now on; it counts them for the next `take`."""
        with self._lock:
            self._spans = deque(maxlen=0)

    def add(self, span: list[Any]) -> None:
        """Adds the span of something that ends in the calling thread; see `ConnectionTrace.add`."""
        with self._lock:
            self._spans.append(span)
            self._added += 1
            self._threads[threading.get_native_id()] = threading.current_thread().name

    def take(self) -> dict[str, Any]:
        """The spans since the last time, and how many of these were dropped; for JSON."""
        with self._lock:
            spans, threads = list(self._spans), dict(self._threads)
            left_out, self._added = self._added - len(spans), 0
            self._spans.clear()
        return {"spans": spans, "threads": threads, "left_out": left_out, **clock()}


class TraceLogs:
    """The traces of a worker, each of a principal. Thread-safe."""

    def __init__(self) -> None:
        self._logs: dict[str, OrderedDict[bytes, TraceLog]] = {}  # by principal
        self._lock = threading.Lock()  # guards it

    def open(self, principal: str, name: bytes) -> TraceLog:
        """A trace of a principal, which is made when there is none of that name."""
        with self._lock:
            logs = self._logs.setdefault(principal, OrderedDict())
            found = logs.setdefault(name, TraceLog())
            logs.move_to_end(name)
            found.keep()
            _make_room(logs, found)
            return found

    def take(self, principal: str, name: bytes) -> dict[str, Any]:
        """The spans of a trace since the last time; see `TraceLog.take`."""
        with self._lock:
            logs = self._logs.get(principal, OrderedDict())
            if name not in logs:
                return TraceLog().take()
            found = logs[name].take()
            logs[name].keep()
            logs.move_to_end(name)
            _make_room(logs)
            return found

    def forget(self, principal: str) -> None:
        """Drops the traces of a principal, whose next holder may be another person."""
        with self._lock:
            self._logs.pop(principal, None)


def _make_room(logs: OrderedDict[bytes, TraceLog], new: TraceLog | None = None) -> None:
    """Drops the oldest trace of a principal where there are too many; one without spans first."""
    kept = [log for log in logs.values() if log.is_kept]
    if len(kept) > _MAX_TRACES:
        next((log for log in kept if log.is_empty and log is not new), kept[0]).drop()
    if len(logs) > _MAX_NAMES:
        del logs[next(name for name, log in logs.items() if not log.is_kept)]


class ConnectionTrace:
    """Records the calls of one connection. Thread-safe.

    Args:
        log: takes the spans.
        label: the client's name for the connection, which its own spans have.
    """

    def __init__(self, log: TraceLog, label: str) -> None:
        self._log = log
        self._label = label
        self._arrived_ns = time.monotonic_ns()

    def wait_for_input(self, channel: Channel) -> None:
        """Returns when a message begins to arrive, or none has come for a while."""
        channel.poll(_MAX_WAIT_S)
        self._arrived_ns = time.monotonic_ns()

    def call(self, number: int) -> CallTrace:
        """The call in the message that has just arrived."""
        found = CallTrace(self, number, self._arrived_ns)
        self.add(number, "receive", self._arrived_ns)
        return found

    def add(
        self,
        number: int,
        name: str,
        started_ns: int,
        about: Mapping[str, Any] | None = None,
        thread: int = 0,
    ) -> None:
        """Adds a span that ends now.

        Args:
            number: the client's number for the request.
            name: of the span.
            started_ns: when it began.
            about: plain values.
            thread: the native id of the one that was busy with it; 0: the calling thread.
        """
        thread = thread or threading.get_native_id()
        now = time.monotonic_ns()
        self._log.add([self._label, number, name, started_ns, now, thread, dict(about or {})])


class CallTrace:
    """The stages of one call, each of which ends when the next begins. Thread-safe.

    The call itself is in one stage at a time, whichever thread works on it. The thread that builds
    its executable has stages of its own meanwhile, which its events tell.

    Args:
        connection: takes them.
        number: the client's number for the call.
        arrived_ns: when it began to arrive.
    """

    __slots__ = ("_arrived_ns", "_connection", "_number", "_open")

    def __init__(self, connection: ConnectionTrace, number: int, arrived_ns: int) -> None:
        self._connection = connection
        self._number = number
        self._arrived_ns = arrived_ns
        self._open: dict[int, _Stage] = {}  # by the thread that builds; that of the call under 0

    def stage(self, name: str, **about: Any) -> None:
        """The call is busy with this now, in the calling thread."""
        self._begin(_OWN, name, about)

    def end(self, **about: Any) -> None:
        """The reply is made: ends all stages, and the call.

        Args:
            about: what is known of it; what is empty is left out.
        """
        for slot in list(self._open):
            self._close(slot)
        known = {name: value for name, value in about.items() if value}
        self._connection.add(self._number, "call", self._arrived_ns, known)

    def emitting(self, emit: Emit) -> Emit:
        """The event stream of the call, whose stages are recorded as well."""
        return partial(self._emit, emit)

    def _emit(self, emit: Emit, kind: str, content: dict[str, Any]) -> None:
        if kind == "stage":
            self._build_stage(content)
        emit(kind, content)

    def _build_stage(self, content: Mapping[str, Any]) -> None:
        """An event of a build, from the thread that builds; or the call begins to wait for one."""
        thread = threading.get_native_id()
        name, about = content["stage"], {n: content[n] for n in _OF_STAGES if n in content}
        if name == "run":  # the build is over
            self._close(thread)
        elif name == "queued" and not about:
            self.stage("build")
        else:
            self._begin(thread, name, about)

    def _begin(self, slot: int, name: str, about: Mapping[str, Any]) -> None:
        self._close(slot)
        self._open[slot] = _Stage(name, time.monotonic_ns(), threading.get_native_id(), about)

    def _close(self, slot: int) -> None:
        stage = self._open.pop(slot, None)
        if stage is not None:
            about = stage.about
            self._connection.add(self._number, stage.name, stage.started_ns, about, stage.thread)


_OWN: Final = 0


class _Stage(NamedTuple):
    """A stage that has not ended.

    Attributes:
        name: of the stage.
        started_ns: when it began.
        thread: the native id of the one in which it began.
        about: what is known of it.
    """

    name: str
    started_ns: int
    thread: int
    about: Mapping[str, Any]
