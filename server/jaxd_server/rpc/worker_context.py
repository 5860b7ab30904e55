"""What all connections of a worker share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.rpc.flow_control import Backlog, CallBudget
from jaxd_server.rpc.inflight_calls import CallPolicy
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Session
from jaxd_server.runtime.counters import Traffic
from jaxd_server.runtime.system_memory import MemoryLoss
from jaxd_server.runtime.threads.executors import FairThreadPool, ThreadPerTask
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
        threading.Thread(target=self._watch, name="jaxd-sentry", daemon=True).start()

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
    """

    pipeline: Pipeline
    operations: AdminService
    stages: Stages
    runners: FairThreadPool
    builders: ThreadPerTask
    watchdog: StallWatchdog
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
