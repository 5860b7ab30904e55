"""A builder as its worker has it: a process, a socket and a request."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from jaxd_protocol.base.process import start_daemon, start_thread
from jaxd_protocol.errors import PackingError
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_server.compilation.remote_build.builder_start import (
    NEW_INTERPRETER,
    ChildProcess,
    Start,
)
from jaxd_server.compilation.remote_build.messages import (
    BuildOrder,
    CancelBuild,
    CompileOrder,
    Ended,
    Event,
    ReadReply,
    ReadRequest,
    Ready,
    Reply,
    Request,
    ShowOrder,
)
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.runtime.threads.executors import process_timers
from jaxd_server.runtime.threads.fairness import CancelHook
from jaxd_server.user_code.client_process import Ask

INTERRUPT_S: Final = 0.5
"""How long a trace that no call waits for has to end by itself; then its process is ended."""

NICE: Final = 10
"""How much lower the priority of a builder is than its worker's. A warm call comes first; and a
small build beside busy clients still takes part of a second, where one of priority 19 takes many.
"""

_MAX_WAIT_S: Final = 5.0

_EOF_S: Final = 0.5
"""A process that has ended has closed its end of the socket; reading what it had sent takes less
than that. Then another one holds that end, such as one that it forked."""

_START_TIMEOUT_S: Final = 60.0
"""A builder that takes longer to start is killed."""

_NOT_RUNNING: Final = Ended("it was not running", "away")


def _tells_nothing(_: bytes, read: ProcessRead) -> Any:
    raise PackingError(f"nobody is there to tell {read.label}.")


class BuilderProcess:
    """A builder that starts in the background. Thread-safe; not restarted once it has ended.

    It works on one request at a time: whoever has it of the pool has it alone.

    Args:
        log_format: of its log lines.
        understands: whether this process can read the sample program that it sends.
        start: starts its process.
        target: what its programs have to be good for, as `Target.digest`; empty: for whatever its
            own environment makes them.

    Attributes:
        known: fingerprints of the functions whose code it has.
        state: what it is doing.
        was_ready: whether it ever took requests.
        builds: how many it has begun.
        yields: whether it computes only where no other process does, which cannot be undone.
        since: `time.monotonic()` when it was given to somebody, or back, last.
        function: whose program it makes; empty when nobody has it.
    """

    def __init__(
        self,
        log_format: Literal["text", "json"],
        understands: Callable[[bytes, bytes], bool],
        start: Start = NEW_INTERPRETER,
        *,
        target: str = "",
    ) -> None:
        self.known: set[bytes] = set()
        self.was_ready = False
        self.builds = 0
        self.yields = False
        self.since = time.monotonic()
        self.function = ""
        self._log_format = log_format
        self._understands = understands
        self._target = target
        self._start_process = start
        self._settled = threading.Event()  # ready, or ended
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self._why: Literal["died", "stopped", "away"] = "died"
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Event | ReadRequest | Reply]] = {}
        self._lock = threading.Lock()  # guards state, _waiting, _why; not held to send
        self._sending = threading.Lock()  # one message at a time
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None  # the same, to shut it down
        self._process: ChildProcess | None = None
        self._exited = threading.Event()  # set once the process has ended; it may not be reaped
        self._reaping = threading.Lock()  # held to reap it, and to use its id: that of no other
        # One thread for as long as it lives: Linux kills it when the thread ends that started it.
        self._thread = threading.Thread(target=self._run, name="jaxd-builder", daemon=True)
        start_thread(self._thread)

    @property
    def pid(self) -> int | None:
        """Its process id, once there is one."""
        return None if self._process is None else self._process.pid

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself, without ever having taken requests."""
        return self.state == "ended" and not self.was_ready and self._why == "died"

    def wait(self, check: Callable[[], None] = lambda: None) -> bool:
        """Waits until it has started; returns whether it takes requests.

        Args:
            check: called now and then; raises what ends the waiting.
        """
        while not self._settled.wait(0.1):
            check()
        return self.state == "ready"

    def resident(self) -> int:
        """Bytes of memory that it has; 0 when that is not known."""
        return 0 if self.pid is None else resident_bytes(self.pid)

    def give_way(self) -> None:
        """Has it compute only where no other process does. XLA's threads are under way already."""
        self.yields = True
        with self._reaping, suppress(OSError):
            if self._process is None or self._process.returncode is not None:
                return
            if not hasattr(os, "SCHED_IDLE"):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
                return
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    def ask(
        self,
        request: Request,
        emit: Emit,
        read: Ask = _tells_nothing,
        cancel_hook: CancelHook = lambda hook: nullcontext(),
        grace_s: Callable[[], float] = lambda: 0.0,
    ) -> Reply:
        """Sends a request and waits for the reply, without a limit.

        Args:
            request: the request; gets its number here.
            emit: takes the events of the build, in this thread.
            read: gives what the function reads of its client's process, in this thread.
            cancel_hook: registers what stops it once no call waits for it any longer.
            grace_s: seconds that a compilation may go on then.
        """
        number = next(self._numbers)
        inbox: queue.SimpleQueue[Event | ReadRequest | Reply] = queue.SimpleQueue()
        with self._lock:
            if self.state != "ready" or self._connection is None:
                return _NOT_RUNNING
            connection = self._connection
            self._waiting[number] = inbox
        traces = isinstance(request, BuildOrder | ShowOrder)
        self.builds += traces or isinstance(request, CompileOrder)
        try:
            with self._sending:
                connection.send(request._replace(number=number))
        except OSError:
            pass  # it has ended, which the other thread reports

        def on_abandoned() -> None:
            if traces:
                self._interrupt(number)
            elif left_s := grace_s():
                self.give_way()  # what nobody waits for comes last
                process_timers.after(left_s, lambda: self.stop(number))
            else:
                self.stop(number)

        with cancel_hook(on_abandoned):
            while isinstance(message := inbox.get(), Event | ReadRequest):
                if isinstance(message, Event):
                    emit(message.kind, self._named(message))
                else:
                    self._answer(connection, message, read)
        return message

    def _named(self, event: Event) -> dict[str, Any]:
        """The content of an event; a stage says which builder is in it."""
        about = {"builder": self.pid} if event.kind == "stage" else {}
        return {**event.content, **about}

    def _answer(self, connection: Connection, question: ReadRequest, read: Ask) -> None:
        """Answers what the builder asks for a function."""
        try:
            reply = ReadReply(question.question, read(question.fingerprint, question.read))
        except Exception as error:  # noqa: BLE001  the function gets it
            reply = ReadReply(question.question, None, encode_failure(error))
        with suppress(OSError), self._sending:
            connection.send(reply)

    def _interrupt(self, number: int) -> None:
        """Interrupts a trace that no call waits for, and ends the process where that has no effect.

        Sending may take a while, and this may be called by whoever reads a connection.
        """
        process_timers.after(INTERRUPT_S, lambda: self.stop(number))
        with suppress(RuntimeError):  # no thread: its process is ended, as the timer says
            start_daemon("jaxd-builder", self._send_cancel, number)

    def _send_cancel(self, number: int) -> None:
        connection = self._connection
        with suppress(OSError), self._sending:
            if connection is not None:
                connection.send(CancelBuild(number))

    def stop(self, number: int) -> None:
        """Ends the process, if it still works on the request of that number."""
        with self._lock:
            if number not in self._waiting:
                return
            self._why, self.state = "stopped", "ended"
        self._kill()

    def end(self) -> None:
        """Ends it at once, and does not wait until it is gone."""
        with self._lock:
            self._why, self.state = "away", "ended"
        self._kill()

    def close(self) -> None:
        """Ends it and waits until it is gone."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(_MAX_WAIT_S)

    def _kill(self) -> None:
        """Ends it, with what it has started and has not left its process group."""
        with self._reaping:
            if self._process is not None and self._process.returncode is None:
                with suppress(OSError):  # nothing is left of it
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self) -> None:
        try:
            connection = self._start()
            if self._why != "died":
                self._kill()
            self._listen(connection)
        except (EOFError, OSError):
            pass  # it has ended, or could not be started
        except Exception:  # noqa: BLE001  an unreadable message: the next builder may be better
            log_event("builder_unreadable")
        finally:
            if self._socket is not None:
                self._socket.close()
            self._end()

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
            argument = {"log_format": self._log_format, "nice": nice}
            try:
                self._process = self._start_process(argument, theirs.fileno())
            except OSError as error:
                ours.close()
                log_event("builder_not_started", reason=str(error))
                raise
        connection = Connection(os.dup(ours.fileno()))
        self._socket = ours
        start_daemon("jaxd-builder", self._watch, self._process, ours)
        return connection

    def _watch(self, process: ChildProcess, ours: socket.socket) -> None:
        """Has the socket end with the process, whoever else holds the other end of it."""
        process.wait_for_exit()
        self._exited.set()
        self._thread.join(_EOF_S)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)

    def _listen(self, connection: Connection) -> None:
        with connection:
            if not connection.poll(_START_TIMEOUT_S):
                log_event("builder_too_slow", pid=self.pid)
                self._kill()
                return
            ready = connection.recv()
            assert isinstance(ready, Ready)
            is_apt = self._target in ("", ready.target)
            if not (is_apt and self._understands(ready.program, ready.name)):
                log_event("builder_not_understood")
                return
            with self._lock:
                if self.state == "ended":
                    return
                self._connection = connection
                self.state = "ready"
                self.was_ready = True
            log_event("builder_ready", pid=self.pid)
            self._settled.set()
            while True:
                self._dispatch(connection.recv())

    def _dispatch(self, message: Any) -> None:
        with self._lock:
            if isinstance(message, Event | ReadRequest):
                inbox = self._waiting.get(message.number)
            else:
                inbox = self._waiting.pop(message.number, None)
        if inbox is not None:
            inbox.put(message)

    def _end(self) -> None:
        how = self._reap()
        with self._lock:
            self.state = "ended"
            why, left = self._why, list(self._waiting.values())
            self._waiting.clear()
        self._settled.set()
        if why != "away":
            log_event("builder_ended", how=how, why=why, pid=self.pid)
        for inbox in left:
            inbox.put(Ended(how, why))

    def _reap(self) -> str:
        """Collects the process."""
        if self._process is None:
            return "it could not be started"
        if not self._exited.wait(_MAX_WAIT_S):  # it has only closed its end
            self._kill()
            self._exited.wait(_MAX_WAIT_S)
        self._kill()  # the processes that a function has forked there
        with self._reaping:
            code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"
