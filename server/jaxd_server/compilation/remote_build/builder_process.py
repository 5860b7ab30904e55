"""A worker's builders: the pool of them, and each a process, a socket and a request."""

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
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Literal, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import PackingError
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_server.compilation.compiling.builds import check_not_abandoned
from jaxd_server.compilation.functions.table import DeadlyFunctions
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
    SideEffects,
)
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.runtime.threads.executors import process_timers
from jaxd_server.runtime.threads.fairness import CancelHook
from jaxd_server.user_code.client_process import Ask

BUILDER_COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.processes.builder")

INTERRUPT_S: Final = 0.5
"""How long a trace that no call waits for has to end by itself; then its process is ended."""

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
        command: what is started; it gets one JSON argument.

    Attributes:
        known: fingerprints of the functions whose code it has.
        state: what it is doing.
        was_ready: whether it ever took requests.
        builds: how many it has begun.
        yields: whether it computes only where no other process does, which cannot be undone.
        since: `time.monotonic()` when it was given to somebody, or back, last.
    """

    def __init__(
        self,
        log_format: Literal["text", "json"],
        understands: Callable[[bytes, bytes], bool],
        command: Sequence[str] = BUILDER_COMMAND,
    ) -> None:
        self.known: set[bytes] = set()
        self.was_ready = False
        self.builds = 0
        self.yields = False
        self.since = time.monotonic()
        self._log_format = log_format
        self._understands = understands
        self._command = tuple(command)
        self._settled = threading.Event()  # ready, or ended
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self._why: Literal["died", "stopped", "away"] = "died"
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Event | ReadRequest | Reply]] = {}
        self._lock = threading.Lock()  # guards state, _waiting, _why; not held to send
        self._sending = threading.Lock()  # one message at a time
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None  # the same, to shut it down
        self._process: subprocess.Popen[bytes] | None = None
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
        with self._reaping, suppress(OSError, AttributeError):  # where there is no such thing
            if self._process is None or self._process.returncode is not None:
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
        traces = isinstance(request, BuildOrder)
        self.builds += isinstance(request, BuildOrder | CompileOrder)
        try:
            with self._sending:
                connection.send(request._replace(number=number))
        except OSError:
            pass  # it has ended, which the other thread reports

        def on_abandoned() -> None:
            if traces:
                self._interrupt(number)
            elif left_s := grace_s():
                process_timers.after(left_s, lambda: self.stop(number))
            else:
                self.stop(number)

        with cancel_hook(on_abandoned):
            while isinstance(message := inbox.get(), Event | ReadRequest):
                if isinstance(message, Event):
                    emit(message.kind, message.content)
                else:
                    self._answer(connection, message, read)
        return message

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
            threading.Thread(target=self._send_cancel, args=(number,), daemon=True).start()

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
        with self._reaping:
            if self._process is not None:
                self._process.kill()

    def _run(self) -> None:
        try:
            connection = self._start()
            if self._why != "died":
                self._kill()
            self._listen(connection)
        except (EOFError, OSError):
            pass  # it has ended, or could not be started
        except Exception:  # noqa: BLE001  an unreadable message: the next builder may be better
            log_event("builder_unreadable", level=logging.ERROR)
        finally:
            if self._socket is not None:
                self._socket.close()
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
                log_event("builder_not_started", level=logging.WARNING, reason=str(error))
                raise
        connection = Connection(os.dup(ours.fileno()))
        self._socket = ours
        args = (self._process, ours)
        threading.Thread(target=self._watch, args=args, name="jaxd-builder", daemon=True).start()
        return connection

    def _watch(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        """Has the socket end with the process, whoever else holds the other end of it."""
        _wait_for_exit(process)
        self._exited.set()
        self._thread.join(_EOF_S)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)

    def _listen(self, connection: Connection) -> None:
        with connection:
            if not connection.poll(_START_TIMEOUT_S):
                log_event("builder_too_slow", level=logging.WARNING, pid=self.pid)
                self._kill()
                return
            ready = connection.recv()
            assert isinstance(ready, Ready)
            if not self._understands(ready.program, ready.name):
                log_event("builder_not_understood", level=logging.WARNING)
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
        with self._reaping:
            code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        process.wait()
        return
    with suppress(ChildProcessError):  # another thread has reaped it
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


_MAX_KEYS: Final = 10_000
_MAX_FAILED_STARTS: Final = 3

_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 60.0
"""After that many another start is tried once a pause, each twice as long as the last one."""

_SPARE_AFTER_S: Final = 0.2
"""While a build takes no longer, the builder that has it is soon there for the next one."""


_LONG_S: Final = 2.0
"""A build that takes longer gives way to others: another start of a builder is little beside it."""


class Lifetime(NamedTuple):
    """When a builder is replaced or ended.

    Attributes:
        builds: how many it makes at most.
        resident: bytes of memory that it has at most; XLA gives nothing back of what it compiles.
        idle_s: seconds that it is kept while nobody needs it.
    """

    builds: int = 500
    resident: int = 1 << 30
    idle_s: float = 60.0


USUAL_LIFETIME: Final = Lifetime()


class BuilderPool:
    """Starts, lends and replaces builders; records what they cannot build. Thread-safe.

    Args:
        counters: to which the counts of a builder are added.
        packages: to which the imports of a builder are added.
        deadly: functions that crash the process that builds them.
        start: starts a builder.
        lifetime: when one is replaced or ended.
        clock: seconds that only grow.

    Attributes:
        refused: functions that are never built in another process.
        deadly: the same.
    """

    def __init__(
        self,
        counters: Counters,
        packages: ImportedPackages,
        deadly: DeadlyFunctions,
        start: Callable[[], BuilderProcess],
        lifetime: Lifetime = USUAL_LIFETIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused = BoundedDict[bytes, None](_MAX_KEYS)
        self.deadly = deadly
        self._counters = counters
        self._packages = packages
        self._start = start
        self._lifetime = lifetime
        self._clock = clock
        self._idle: list[BuilderProcess] = []  # the one used last is at the end
        self._lent: list[BuilderProcess] = []
        self._new: list[BuilderProcess] = []  # whose start has not ended yet, well or not
        self._failed_starts = 0  # one after the other
        self._retry_at = 0.0  # when another one may be tried, if that are too many
        self._is_closed = False
        self._lock = threading.Lock()  # guards all of these

    def lend(self, fingerprint: bytes = b"", *, unused: bool = False) -> BuilderProcess | None:
        """A builder for the caller alone, once it has started; None: there is none now.

        Args:
            fingerprint: of a function; one that has its code is preferred.
            unused: whether it must not have built anything.

        Raises:
            Interrupted: when no call waits any longer for what this thread builds.
        """
        while True:
            builder = self._take(fingerprint, unused=unused)
            if builder is None:
                return None
            try:
                is_ready = builder.wait(check_not_abandoned)
            except BaseException:
                self.give_back(builder)
                raise
            if is_ready:
                builder.since = self._clock()
                self._have_long_ones_give_way(builder)
                return builder
            self.give_back(builder)

    def _have_long_ones_give_way(self, newcomer: BuilderProcess) -> None:
        """A short build beside one of minutes takes hardly longer than alone."""
        before = self._clock() - _LONG_S
        with self._lock:
            long = [one for one in self._lent if one.since < before and not one.yields]
        for one in long:
            if one is not newcomer:
                one.give_way()

    def _take(self, fingerprint: bytes, *, unused: bool) -> BuilderProcess | None:
        with self._lock:
            if not self._may_lend():
                return None
            suited = [one for one in self._idle if not (unused and one.builds)]
            if self._starts_fail:
                suited = [one for one in suited if one.state == "ready"]
            best = max(
                suited,
                key=lambda one: (fingerprint in one.known, one.state == "ready"),
                default=None,
            )
            if best is not None:
                self._idle.remove(best)
            elif self._starts_fail:
                return None
            else:
                best = self._begin_start()
            best.since = self._clock()
            self._lent.append(best)
            return best

    def give_back(self, builder: BuilderProcess) -> None:
        """Takes a builder back; one that has built enough, has grown or gives way is ended."""
        is_spent = builder.yields or builder.builds >= self._lifetime.builds
        if not is_spent and builder.state == "ready":
            is_spent = builder.resident() > self._lifetime.resident
        if is_spent:
            log_event("builder_replaced", pid=builder.pid, builds=builder.builds)
            builder.end()
        with self._lock:
            self._lent.remove(builder)
            if not is_spent and not self._is_closed:
                builder.since = self._clock()
                self._idle.append(builder)
            self._sort_out()

    def all_know(self, fingerprint: bytes) -> bool:
        """Whether whichever builder is lent next has the code of a function."""
        with self._lock:
            there = (*self._idle, *self._lent)
            return bool(there) and all(fingerprint in one.known for one in there)

    @property
    def is_ready(self) -> bool:
        """Whether one could begin at once."""
        with self._lock:
            return any(one.state == "ready" for one in self._idle)

    def can_lend(self) -> bool:
        """Whether a build may be given to a builder: not while they cannot be started.

        Then another start is tried now and then, which nobody waits for.
        """
        with self._lock:
            return self._may_lend()

    def start_spare(self) -> None:
        """Starts one if there is none, or none but such as have been at work for long."""
        with self._lock:
            now = self._clock()
            if not self._may_lend() or self._starts_fail or self._idle:
                return
            if all(
                one.state != "starting" and now - one.since > _SPARE_AFTER_S for one in self._lent
            ):
                self._idle.append(self._begin_start())

    def end_idle(self, keep: int) -> None:
        """Ends those that nobody has needed for long, but for the `keep` that were used last."""
        with self._lock:
            self._sort_out()
            before = self._clock() - self._lifetime.idle_s
            over = [one for one in self._idle[: len(self._idle) - keep] if one.since < before]
            self._idle = [one for one in self._idle if one not in over]
        for one in over:
            one.end()

    def _sort_out(self) -> None:
        """Forgets those that have ended, and learns which have started. The lock is held."""
        self._idle = [one for one in self._idle if one.state != "ended"]
        settled = [one for one in self._new if one.state != "starting"]
        self._new = [one for one in self._new if one not in settled]
        for one in settled:
            if one.was_ready and self._starts_fail:
                log_event("builders_start_again")
            if one.was_ready:
                self._failed_starts = 0
            elif one.has_failed:
                self._count_failed_start()

    def _count_failed_start(self) -> None:
        self._failed_starts += 1
        over = self._failed_starts - _MAX_FAILED_STARTS
        if over == 0:
            log_event("builders_do_not_start", level=logging.WARNING)
        if over >= 0:
            self._retry_at = self._clock() + min(_MAX_PAUSE_S, _PAUSE_S * 2 ** min(over, 10))

    @property
    def _starts_fail(self) -> bool:
        return self._failed_starts >= _MAX_FAILED_STARTS

    def _may_lend(self) -> bool:
        """See `can_lend`. The lock is held."""
        self._sort_out()
        if self._is_closed:
            return False
        if not self._starts_fail:
            return True
        if not self._new and self._clock() >= self._retry_at:
            self._idle.append(self._begin_start())
        return any(one.state == "ready" for one in self._idle)

    def _begin_start(self) -> BuilderProcess:
        """A builder that starts. The lock is held."""
        builder = self._start()
        builder.since = self._clock()
        self._new.append(builder)
        return builder

    def close(self) -> None:
        """Ends all builders; there are none after that."""
        with self._lock:
            self._is_closed = True
            left, self._idle = [*self._idle, *self._lent], []
        for one in left:
            one.end()
        for one in left:
            one.close()

    def apply_side_effects(self, side: SideEffects) -> None:
        """Applies counters and imports that a builder has reported."""
        self._counters.add(**side.counts)
        self._packages.adopt(side.packages)
