"""A worker's handle of its tracer: a process, a socket, and open requests."""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_server.compilation.compiling.builds import current_build
from jaxd_server.compilation.remote_trace.messages import (
    CancelTrace,
    Ended,
    Event,
    ReadReply,
    ReadRequest,
    Ready,
    Reply,
    SideEffects,
    TraceRequest,
)
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.fairness import CancelHook
from jaxd_server.user_code.client_process import Ask

TRACER_COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.processes.tracer")

_MAX_WAIT_S: Final = 5.0

_START_TIMEOUT_S: Final = 60.0
"""A tracer that takes longer to start is killed."""


def _tells_nothing(_: bytes, read: ProcessRead) -> Any:
    raise PackingError(f"nobody is there to tell {read.label}.")


class TracerProcess:
    """A tracer that starts in the background. Thread-safe; not restarted once it has ended.

    Args:
        log_format: of its log lines.
        understands: whether this process can read the sample program that it sends.
        command: what is started; it gets one JSON argument.

    Attributes:
        known: fingerprints of the functions whose code it has.
        state: what it is doing; set by its own thread.
        was_ready: whether it ever took requests.
    """

    def __init__(
        self,
        log_format: Literal["text", "json"],
        understands: Callable[[bytes, bytes], bool],
        command: Sequence[str] = TRACER_COMMAND,
    ) -> None:
        self.known: set[bytes] = set()
        self.was_ready = False
        self._log_format = log_format
        self._understands = understands
        self._command = tuple(command)
        self._settled = threading.Event()  # ready, or ended
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self._closing = False
        self._retired = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Event | ReadRequest | Reply]] = {}
        self._lock = threading.Lock()  # guards state, _waiting, _retired; not held to send
        self._sending = threading.Lock()  # one message at a time
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # One thread for as long as it lives: Linux kills it when the thread ends that started it.
        self._thread = threading.Thread(target=self._run, name="jaxd-tracer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Its process id, once there is one."""
        return None if self._process is None else self._process.pid

    def wait(self) -> bool:
        """Waits until it has started; returns whether it takes requests."""
        self._settled.wait()
        return self.state == "ready"

    def ask(
        self,
        order: TraceRequest,
        emit: Emit,
        read: Ask = _tells_nothing,
        cancel_hook: CancelHook = lambda hook: nullcontext(),
    ) -> Reply:
        """Sends a request and waits for the reply, without a limit.

        Args:
            order: the request; gets its number here.
            emit: takes the events of the trace, in this thread.
            read: gives what the function reads of its client's process, in this thread.
            cancel_hook: registers what interrupts it once no call waits for it any longer.
        """
        number = next(self._numbers)
        inbox: queue.SimpleQueue[Event | ReadRequest | Reply] = queue.SimpleQueue()
        with self._lock:
            if self.state != "ready" or self._retired or self._connection is None:
                return Ended("it was not running", 0)
            connection = self._connection
            self._waiting[number] = inbox
        try:
            with self._sending:
                connection.send(order._replace(number=number))
        except OSError:
            pass  # it has ended, which the other thread reports
        with cancel_hook(lambda: self._forget(number)):
            while isinstance(message := inbox.get(), Event | ReadRequest):
                if isinstance(message, Event):
                    emit(message.kind, message.content)
                else:
                    self._answer(connection, message, read)
        return message

    def _answer(self, connection: Connection, question: ReadRequest, read: Ask) -> None:
        """Answers what the tracer asks for a function."""
        try:
            reply = ReadReply(question.question, read(question.fingerprint, question.read))
        except Exception as error:  # noqa: BLE001  the function gets it
            reply = ReadReply(question.question, None, encode_failure(error))
        with suppress(OSError), self._sending:
            connection.send(reply)

    def _forget(self, number: int) -> None:
        """Has a request interrupted that no call waits for; it is answered all the same."""
        connection = self._connection
        with suppress(OSError), self._sending:
            if connection is not None:
                connection.send(CancelTrace(number))

    def kill(self) -> None:
        """Ends it at once; open requests are answered with `Ended`."""
        if self._process is not None:
            self._process.kill()

    def retire(self) -> None:
        """Takes no more requests, and ends once the open ones are answered."""
        with self._lock:
            self._retired = True
            is_idle = not self._waiting
        if is_idle:
            self.close()

    def close(self) -> None:
        """Ends it and waits until it is gone."""
        self._closing = True
        if self._process is not None:
            self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(_MAX_WAIT_S)

    def _run(self) -> None:
        try:
            connection = self._start()
            if self._closing:
                self.close()
            self._listen(connection)
        except (EOFError, OSError):
            pass  # it has ended, or could not be started
        except Exception:  # noqa: BLE001  an unreadable message: the next tracer may be better
            log_event("tracer_unreadable", level=logging.ERROR)
        finally:
            self._end()

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            argument = {
                "fd": theirs.fileno(),
                "log_format": self._log_format,
                "parent": os.getpid(),
            }
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own process
                    [*self._command, json.dumps(argument)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except OSError as error:
                ours.close()
                log_event("tracer_not_started", level=logging.WARNING, reason=str(error))
                raise
        return Connection(ours.detach())

    def _listen(self, connection: Connection) -> None:
        with connection:
            if not connection.poll(_START_TIMEOUT_S):
                log_event("tracer_too_slow", level=logging.WARNING, pid=self.pid)
                assert self._process is not None
                self._process.kill()
                return
            ready = connection.recv()
            assert isinstance(ready, Ready)
            if not self._understands(ready.program, ready.name):
                log_event("tracer_not_understood", level=logging.WARNING)
                return
            with self._lock:
                self._connection = connection
                self.state = "ready"
                self.was_ready = True
            self._settled.set()
            log_event("tracer_ready", pid=self.pid)
            while True:
                self._dispatch(connection.recv())

    def _dispatch(self, message: Any) -> None:
        with self._lock:
            if isinstance(message, Event | ReadRequest):
                inbox = self._waiting.get(message.number)
            else:
                inbox = self._waiting.pop(message.number, None)
            is_done = self._retired and not self._waiting
        if inbox is not None:
            inbox.put(message)
        if is_done:
            self.close()

    def _end(self) -> None:
        how = self._reap()
        with self._lock:
            self.state = "ended"
            left = list(self._waiting.values())
            self._waiting.clear()
        self._settled.set()
        suspects = 0 if self._closing else len(left)  # none if killed here
        if not self._closing:
            log_event("tracer_ended", how=how, orders=suspects)
        for inbox in left:
            inbox.put(Ended(how, suspects))

    def _reap(self) -> str:
        """Collects the process."""
        if self._process is None:
            return "it could not be started"
        try:
            code = self._process.wait(_MAX_WAIT_S)
        except subprocess.TimeoutExpired:  # it has only closed its end
            self._process.kill()
            code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"


_MAX_KEYS: Final = 10_000
_MAX_FAILED_STARTS: Final = 3


class TracerPool:
    """Starts and replaces the tracer; records the functions that it cannot trace. Thread-safe.

    Args:
        counters: to which the counts of a tracer are added.
        packages: to which the imports of a tracer are added.
        start: starts a tracer.

    Attributes:
        refused: functions that are never traced in another process.
        deadly: functions that crash the process that traces them: the worker never does.
        is_disabled: whether no tracer is started any longer.
    """

    def __init__(
        self, counters: Counters, packages: ImportedPackages, start: Callable[[], TracerProcess]
    ) -> None:
        self.refused = BoundedDict[bytes, None](_MAX_KEYS)
        self.deadly = BoundedDict[bytes, None](_MAX_KEYS)
        self._counters = counters
        self._packages = packages
        self._start = start
        self._tracer: TracerProcess | None = None
        self.is_disabled = False
        self._false_starts = 0
        self._lock = threading.Lock()  # guards _tracer, is_disabled and _false_starts

    def present(self) -> TracerProcess | None:
        """The tracer, started if need be and perhaps not ready; None when it is disabled."""
        with self._lock:
            tracer = self._tracer
            if tracer is not None and tracer.state == "ended":
                self._false_starts = 0 if tracer.was_ready else self._false_starts + 1
                if self._false_starts >= _MAX_FAILED_STARTS:
                    log_event("tracer_given_up", level=logging.WARNING)
                    self.is_disabled = True
                tracer = None
            if self.is_disabled:
                return None
            self._tracer = tracer or self._start()
            return self._tracer

    def drop(self, tracer: TracerProcess) -> None:
        """Retires a tracer that is out of date, and starts the next."""
        with self._lock:
            if self._tracer is tracer and not self.is_disabled:
                self._tracer = self._start()
        tracer.retire()

    def close(self) -> None:
        """Ends the tracer; there is none after that."""
        with self._lock:
            self.is_disabled = True
            tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    def alone(self, order: TraceRequest, emit: Emit, read: Ask) -> Reply:
        """The reply to a request from a process that does nothing else."""
        with closing(self._start()) as tracer:
            tracer.wait()
            return trace_with(tracer, order, emit, read)

    def apply_side_effects(self, side: SideEffects) -> None:
        """Applies counters and imports that a tracer has reported."""
        self._counters.add(**side.counts)
        self._packages.adopt(side.packages)

    def mark_deadly(self, key: bytes) -> None:
        """Records that a function crashes the process that traces it."""
        self.deadly[key] = None
        self.present()  # starts the next one, so that others need not wait for it


def trace_with(tracer: TracerProcess, order: TraceRequest, emit: Emit, read: Ask) -> Reply:
    """The reply of a tracer; cancelling the build of this thread by force kills the tracer."""
    build = current_build()
    if build is None:
        return tracer.ask(order, emit, read)
    build.end_by_force = tracer.kill
    try:
        return tracer.ask(order, emit, read, build.cancel_hook)
    finally:
        build.end_by_force = None
