"""What all connections of a worker share, and who looks after them: the stuck, and the idle."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import Busy
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.rpc.flow_control import Backlog, CallBudget
from jaxd_server.rpc.inflight_calls import CallPolicy
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.peers import PeerService
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Session
from jaxd_server.runtime.call_trace import TraceLogs
from jaxd_server.runtime.counters import Traffic
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import MemoryLoss
from jaxd_server.runtime.threads.executors import FairThreadPool, ThreadPerTask, start_vital
from jaxd_server.values.store import ValueStore

STALL_S: Final = 0.005
"""Longest time for which a call that used to be short may keep a connection from being read."""

_IDLE_S: Final = 0.25


class WatchedReader(Protocol):
    """The reader of one connection.

    Attributes:
        busy_since: `time.monotonic()` when it began to run a call; None: it reads.
    """

    busy_since: float | None

    def replace_if_stuck(self, now: float) -> None:
        """Starts another reading thread when the present one has run a call for too long."""


class StallWatchdog:
    """Replaces readers that are stuck in a call; sleeps while no calls run.

    Attributes:
        is_idle: whether it has to be woken when a reading thread is about to run a call.
    """

    def __init__(self) -> None:
        self._watched: set[WatchedReader] = set()
        self._awake = threading.Event()
        self.is_idle = True
        self._stopped = False
        start_daemon("jaxd-sentry", self._watch)

    def watch(self, reader: WatchedReader) -> None:
        """Adds the reader of a connection."""
        self._watched.add(reader)

    def unwatch(self, reader: WatchedReader) -> None:
        """Removes the reader of a connection that ended."""
        self._watched.discard(reader)

    def wake(self) -> None:
        """A reading thread is about to run a call."""
        self._awake.set()

    def stop(self) -> None:
        """Ends the watchdog's thread."""
        self._stopped = True
        self._awake.set()

    def _watch(self) -> None:
        while not self._stopped:
            self.is_idle = True
            # A reader marks itself busy before it reads `is_idle`, so one of the two notices.
            if not any(reader.busy_since for reader in list(self._watched)):
                self._awake.wait()
            self._awake.clear()
            self.is_idle = False
            self._check_all()

    def _check_all(self) -> None:
        """Checks every reader once per `STALL_S` until none has been busy for a while."""
        last_busy = time.monotonic()
        while not self._stopped and time.monotonic() - last_busy < _IDLE_S:
            time.sleep(STALL_S)
            now = time.monotonic()
            for reader in list(self._watched):
                if reader.busy_since is not None:
                    last_busy = now
                    reader.replace_if_stuck(now)


SILENCE_S: Final = 1.0
"""How long a connection is silent before its thread leaves it. To leave it and to take it up again
takes 0.3 ms of the processor: of a client that pauses for so long, less than a thousandth."""

_RETRY_S: Final = 1.0
"""Delay before the next attempt when the process has no free thread."""

_NOTIFICATIONS: Final = 1 << 12
"""How many are read at a time; each has one byte."""


class IdleConnections:
    """The connections that no thread reads: one thread waits for input on all. Thread-safe.

    A connection is here from `add` until there is input, or it has ended; then a thread of its own
    takes it up again. Until that has begun, its socket must not be closed.
    """

    def __init__(self) -> None:
        self._arriving: deque[tuple[socket.socket, Callable[[], None]]] = deque()
        # Its thread alone changes the selector: not every kind can be changed while it waits.
        self._selector = selectors.DefaultSelector()
        self._notified, self._notify = socket.socketpair()
        self._notify.setblocking(False)
        self._selector.register(self._notified, selectors.EVENT_READ)
        start_vital(self._run, "jaxd-idle")

    def __len__(self) -> int:
        """How many there are."""
        return len(self._selector.get_map()) - 1 + len(self._arriving)

    def add(self, sock: socket.socket, take_up: Callable[[], None]) -> None:
        """Takes over a connection; the calling thread has no further part in it.

        Args:
            sock: where input is waited for.
            take_up: called once, in a new thread, when there is some.
        """
        self._arriving.append((sock, take_up))
        with suppress(OSError):  # it has many notifications to read, or has ended
            self._notify.send(b"+")

    def close(self) -> None:
        """Ends the thread; what is still here is not taken up any more."""
        self._notify.close()

    def _run(self) -> None:
        with self._notified, self._selector as selector:
            while True:
                for key, _ in selector.select():
                    if key.data is not None:
                        selector.unregister(key.fileobj)
                        self._start(*key.data)
                    elif not self._notified.recv(_NOTIFICATIONS):
                        return
                while self._arriving:
                    self._register(*self._arriving.popleft())

    def _register(self, sock: socket.socket, take_up: Callable[[], None]) -> None:
        try:
            self._selector.register(sock, selectors.EVENT_READ, (sock, take_up))
        except (OSError, ValueError, KeyError) as error:  # there is no memory for it, or it is gone
            log_event("cannot_wait", reason=str(error))
            self._start(sock, take_up)

    def _start(self, sock: socket.socket, take_up: Callable[[], None]) -> None:
        """Has a thread take it up; where there is none now, it stays here, and all wait a while."""
        try:
            start_daemon("jaxd-client", take_up)
        except Busy as error:
            log_event("cannot_serve", reason=str(error))
            self._arriving.append((sock, take_up))
            time.sleep(_RETRY_S)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all connections of a worker share.

    Attributes:
        pipeline: answers calls.
        operations: answers administrators.
        stages: shows the stages of a function.
        runners: threads for warm calls that take a while.
        builders: threads for calls that may have to build an executable first, and operations.
        watchdog: replaces readers that are stuck.
        idle_connections: waits for input where no thread reads.
        budget: bytes held by all connections.
        traffic: counts the bytes of all connections.
        values: arrays that stay on the server.
        options: those of the server.
        max_shared_bytes: of a client's memory that is mapped.
        report: JSON-able answers to `statistics` and `info`, to a principal.
        devices: the same to `devices`, for a session.
        backlog: calls that wait for a thread, or run in one.
        policy: limits for the calls that other threads than a reader answer.
        memory_loss: of earlier workers, if the system has ended one for want of memory.
        peers: answers the other members of the pool; None: the server is in none.
        traces: what the calls of traced connections spent their time on.
    """

    pipeline: Pipeline
    operations: AdminService
    stages: Stages
    runners: FairThreadPool
    builders: ThreadPerTask
    watchdog: StallWatchdog
    idle_connections: IdleConnections
    budget: CallBudget
    traffic: Traffic
    values: ValueStore
    options: ServerOptions
    max_shared_bytes: int
    report: Callable[[str, str], dict[str, Any]]
    devices: Callable[[Session], dict[str, Any]]
    policy: CallPolicy
    backlog: Backlog
    memory_loss: MemoryLoss | None = None
    peers: PeerService | None = None
    traces: TraceLogs = field(default_factory=TraceLogs)
