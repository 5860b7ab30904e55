"""Reading a connection shared by many callers: one caller reads at a time, no extra thread.

A caller that waits alone reads its own reply. When several wait, one of them reads for all, and
hands on the reading when its own reply has come. Replies that no thread waits for (`launch`) are
read by a thread of the connection's own. An interrupted caller leaves at any point; reading goes on
where it stopped (see `jaxd_protocol.wire.frames`).
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import Busy, ConnectionLost, DeadlineExceeded, JaxdError
from jaxd_protocol.wire import INTERRUPTIBLE_S, BulkChannel, Frame
from jaxd_protocol.wire.stream import AdaptiveWait

if TYPE_CHECKING:
    from jaxd_protocol.wire import Frame, Value


class NotSent(ConnectionLost):
    """`ConnectionLost` for a request that was not sent completely, and so was not started."""


class PendingReply:
    """A request without a reply so far.

    Attributes:
        done: whether `value` and `frame`, or `error`, are there.
        waiter_locks: one for each waiting thread; released when it has to look again.
        then: called with it in the reading thread when it is done; an interrupt can make that
            happen twice.
        needs_reader: whether it has to be read although no thread waits.
        is_ahead: whether a thread waits for it later: until then it is read with a delay.
        about: the call that it is for; None when it is for something else.
    """

    __slots__ = (
        *("about", "done", "error", "frame", "is_ahead", "needs_reader", "then", "value"),
        "waiter_locks",
    )

    def __init__(
        self,
        then: Callable[[PendingReply], None] | None = None,
        *,
        needs_reader: bool = False,
        is_ahead: bool = False,
        about: Any = None,
    ) -> None:
        self.needs_reader = needs_reader
        self.is_ahead = is_ahead
        self.about = about
        self.done = False
        self.value: Value = None
        self.frame: Frame | None = None
        self.error: Exception | None = None
        self.waiter_locks: list[threading.Lock] = []
        self.then = then

    def wake(self) -> None:
        """Wakes the waiting threads, if any."""
        gates, self.waiter_locks = self.waiter_locks, []
        for gate in gates:
            gate.release()

    def result(self) -> tuple[Value, Frame]:
        """The reply; raises what took its place."""
        if self.error is not None:
            raise _of_one_waiter(self.error)
        assert self.frame is not None
        return self.value, self.frame


def _of_one_waiter(error: Exception) -> Exception:
    """The same error for one of all who wait: the frames in which it is raised stay in it."""
    if not isinstance(error, ConnectionLost):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


_MAX_EXIT_S: Final = 5.0
"""A process that exits waits so long at most for a reply that is being decoded."""

_READ_AHEAD_S: Final = 0.05
"""A reply to a request that was sent ahead is read after so long, if its caller does not."""

CONNECTION_LOST_TEXT = "the connection to the server ended while a call was open."


class Dispatcher(Protocol):
    """A connection that dispatches messages."""

    @property
    def alive(self) -> bool:
        """Whether it is open."""

    def dispatch(self, frame: Frame) -> None:
        """Dispatches one message."""

    def shut(self) -> None:
        """Ends it at once."""


class _ProcessExits(Exception):
    """The background thread dispatches nothing more: the message stays for another thread."""


class SharedReader:
    """Reads a connection on behalf of all waiting callers. Thread-safe.

    Args:
        connection: what has to be read.
        channel: its channel.

    Attributes:
        pending: its requests without a reply, by number.
    """

    def __init__(self, connection: Dispatcher, channel: BulkChannel) -> None:
        channel.stream.stay_interruptible()
        self._connection = connection
        self._channel = channel
        self._is_reading = False  # whether some thread is in charge of reading
        self._reader_thread: int | None = None  # the thread that reads
        self._generation = 0  # grows when a thread gives the reading up before it is done
        self._is_dispatching = False
        self._first_error: Exception | None = None
        self._unawaited = 0  # requests whose reply no thread waits for
        self._ahead = 0  # those whose reply a thread waits for later
        self._is_exiting = False
        self._background_reader = BackgroundReader(self)
        self._adaptive_wait = AdaptiveWait(channel.stream.readiness())
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: the parent's requests are none of the child's business."""
        self.pending: dict[int, PendingReply] = {}
        self._lock = threading.Lock()  # guards _is_reading, _unawaited and the entries of pending
        self._dispatch_gate = threading.Lock()  # held by its own thread while it dispatches

    @property
    def alive(self) -> bool:
        """Whether there may be something to read."""
        return self._connection.alive

    def stop(self) -> None:
        """The connection has ended: so does the thread of its own."""
        self._background_reader.stop()

    def stop_at_exit(self) -> None:
        """The process ends: its own thread finishes the reply that it decodes, and begins no other.

        A thread that the interpreter ends while it is inside of jax aborts the process. Threads
        that wait for a reply still read it.
        """
        self._is_exiting = True
        if self._dispatch_gate.acquire(timeout=_MAX_EXIT_S):
            self._dispatch_gate.release()

    def wait(self, pending: PendingReply, deadline: float | None) -> None:
        """Returns when a request has its reply, or the connection has ended.

        Raises:
            DeadlineExceeded: when the deadline passed.
        """
        self._yield_reading()
        while not pending.done:
            if not self._connection.alive and pending not in self.pending.values():
                raise ConnectionLost(CONNECTION_LOST_TEXT)  # in the child of a fork
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    "the call's timeout_s passed before its result arrived. The server may still "
                    "be working on it; give the call more time, or wait and repeat it."
                )
            leading = False
            gate = None
            try:
                with self._lock:
                    if self._is_reading:
                        gate = threading.Lock()
                        gate.acquire()
                        pending.waiter_locks.append(gate)
                    else:
                        leading = True  # first, so that an interrupt in between is made good
                        self._is_reading = True
                if leading:
                    leading = self._read_until(lambda: pending.done, deadline)
                elif gate is not None and not pending.done:
                    gate.acquire(timeout=_next_wait_s(deadline))
            finally:
                if gate is not None:
                    with suppress(ValueError):  # the thread that woke this one has taken it out
                        pending.waiter_locks.remove(gate)
                self._pass_reading_on(leading)

    def _read_until(
        self,
        enough: Callable[[], bool],
        deadline: float | None = None,
        *,
        in_background: bool = False,
    ) -> bool:
        """Reads and dispatches for everybody; the connection's end is dispatched as well.

        Returns:
            Whether this thread is still in charge of reading; see `_yield_reading`.
        """
        reader = self._channel.reader
        dispatch = self._dispatch_in_background if in_background else self._connection.dispatch
        me = self._reader_thread = threading.get_ident()
        turn = self._generation
        try:
            while not enough():
                if deadline is not None and not _arrives_in_time(deadline, self._channel.poll):
                    break
                if not reader.has_input():
                    self._adaptive_wait.wait()
                frame = reader.peek() if deadline is None else self._peek_until(deadline)
                try:
                    self._is_dispatching = True
                    dispatch(frame)
                finally:
                    self._is_dispatching = False
                if turn != self._generation:
                    return False
                reader.advance()
        except JaxdError as error:  # first: some of them are OSErrors as well
            self.fail_all(error)
        except (TimeoutError, _ProcessExits):
            pass  # the rest of a message does not come in time; it may still come
        except (EOFError, OSError) as error:
            self.fail_all(ConnectionLost(CONNECTION_LOST_TEXT), error)
        return self._reader_thread == me and turn == self._generation

    def _dispatch_in_background(self, frame: Frame) -> None:
        with self._dispatch_gate:
            if self._is_exiting:
                raise _ProcessExits
            self._connection.dispatch(frame)

    def _peek_until(self, deadline: float) -> Frame:
        """The next message; raises `TimeoutError` when it is not whole at the deadline."""
        channel = self._channel
        is_readable = channel.stream.wait_readable
        with channel.reader.bounded_wait(lambda: _arrives_in_time(deadline, is_readable)):
            frame: Frame = channel.reader.peek()
        return frame

    def _yield_reading(self) -> None:
        """Stops reading if this thread is the reader and is about to wait for a reply.

        It has when a future's callback makes a call of its own, and when an interrupt came just
        before it could hand on.
        """
        if not self._is_reading or self._reader_thread != threading.get_ident():
            return
        with self._lock:
            if self._is_dispatching:
                self._channel.reader.advance()  # the callback belongs to that message
            self._generation += 1
            self._is_reading = False

    def _pass_reading_on(self, leading: bool) -> None:
        """Makes another waiting thread the reader, if there is one and none is reading."""
        with self._lock:
            if leading:
                self._is_reading = False
                self._reader_thread = None
            elif self._is_reading:
                return
            if not self.pending:
                return
            waiting = (p for p in list(self.pending.values()) if p.waiter_locks and not p.done)
            successor = next(waiting, None)
        if successor is not None:
            successor.wake()
        elif self._unawaited:
            with suppress(Busy):  # no thread: whoever waits next reads on
                self.start_background_reading()

    def start_background_reading(self) -> None:
        """Makes sure that the connection's own thread reads when no other does.

        Raises:
            Busy: when the system has no thread for it.
        """
        with self._lock:
            if not self._is_reading and not self._is_exiting:
                self._background_reader.request_read()

    @contextmanager
    def background_reading(self) -> Iterator[None]:
        """Replies are read meanwhile."""
        with self._lock:
            self._unawaited += 1
        try:
            self.start_background_reading()
            yield
        finally:
            with self._lock:
                self._unawaited -= 1

    def read_unawaited(self) -> float | None:
        """The connection's own thread reads until no reply is left that no thread waits for.

        Of replies to requests that were sent ahead, it reads those that have arrived.

        Returns:
            After how many seconds to look for more of these; None: when it is asked to.
        """
        if self._unawaited:
            self._read_unless_reading(lambda: not self._unawaited, in_background=True)
        elif self._ahead:
            self.read_available(in_background=True)
        return _READ_AHEAD_S if self._ahead else None

    def _read_unless_reading(
        self, enough: Callable[[], bool], *, in_background: bool = False
    ) -> None:
        with self._lock:
            if self._is_reading:
                return  # that reader will hand on
            self._is_reading = True
        leading = True
        try:
            leading = self._read_until(enough, in_background=in_background)
        finally:
            self._pass_reading_on(leading)

    def abandon(
        self, seq: int, pending: PendingReply, late: Callable[[PendingReply], None]
    ) -> bool:
        """A caller stops waiting: its reply has to be read all the same.

        Returns:
            Whether the reply is still to come; then `late` is called with it.
        """
        self._yield_reading()
        with self._lock:
            if not self._connection.alive or self.pending.get(seq) is not pending:
                self.pending.pop(seq, None)
                return False
            pending.then = late
            if not pending.needs_reader:
                self._ahead -= pending.is_ahead
                pending.needs_reader = True
                self._unawaited += 1
        with suppress(Busy):  # as above
            self.start_background_reading()
        return True

    def register(self, seq: int, pending: PendingReply) -> None:
        """Registers a request for its reply or the connection's end.

        Raises:
            Busy: when the system has no thread for the reply of one that is sent ahead.
        """
        self.pending[seq] = pending
        if pending.needs_reader:
            with self._lock:
                self._unawaited += 1
        elif pending.is_ahead:
            with self._lock:
                self._ahead += 1
                if self._ahead == 1:
                    self._background_reader.request_read()

    def unregister(self, seq: int, pending: PendingReply) -> bool:
        """Removes a request; returns whether it was still open."""
        with self._lock:
            found = self.pending.pop(seq, None) is not None
            if found and pending.needs_reader:
                self._unawaited -= 1
            elif found and pending.is_ahead:
                self._ahead -= 1
            return found

    def read_available(self, *, in_background: bool = False) -> None:
        """Reads replies that have arrived, unless another thread reads."""
        if self.pending:
            self._read_unless_reading(
                lambda: not self._channel.poll(0), in_background=in_background
            )

    def finish(self, seq: int, pending: PendingReply) -> None:
        """Completes a request and notifies its waiters."""
        pending.done = True
        pending.about = None  # which holds arrays
        pending.wake()
        if not self.unregister(seq, pending) or pending.then is None:
            return  # another thread has called it, or there is none
        try:
            pending.then(pending)
        except BaseException:  # an interrupt: the next reading thread calls it again
            self.register(seq, pending)
            raise

    def fail_all(self, error: Exception, cause: Exception | None = None) -> None:
        """The connection has ended: all open requests fail with `error`, or with the first one."""
        # without the frames of this thread: they hold arrays, and this error is kept for long
        error.__traceback__ = None
        error.__cause__ = None if cause is None else cause.with_traceback(None)
        self._first_error = self._first_error or error  # first: other threads see that it is shut
        self._connection.shut()
        self.finish_all(self._first_error)

    def finish_all(self, error: Exception) -> None:
        """All open requests fail with `error`."""
        interrupt: BaseException | None = None
        for seq, pending in list(self.pending.items()):
            pending.error = error
            try:
                self.finish(seq, pending)
            except BaseException as raised:  # noqa: BLE001  no thread reads on here, and others wait
                interrupt = interrupt or raised
                with suppress(BaseException):
                    self.finish(seq, pending)
        if interrupt is not None:
            raise interrupt

    def expire(self, seq: int, error: Exception) -> None:
        """Ends a submitted request with `error`; should its reply come, `then` has it as well."""
        with self._lock:
            pending = self.pending.get(seq)
            if pending is None or pending.done or pending.then is None:
                return
            self.pending[seq] = PendingReply(pending.then, needs_reader=True)
        pending.error = error
        pending.done = True
        pending.then(pending)


class BackgroundReader:
    """A connection's background thread, for replies without a waiter. Does not keep it alive.

    Started when it is first needed.
    """

    def __init__(self, reader: SharedReader) -> None:
        self._reader = weakref.ref(reader)
        self._wake_event = threading.Event()
        self._started = False
        weakref.finalize(reader, self._wake_event.set)  # the thread waits for nothing else

    def request_read(self) -> None:
        """Lets the thread look; to be called under the connection's lock."""
        if not self._started:
            start_thread(threading.Thread(target=self._run, name="jaxd-reader", daemon=True))
            self._started = True  # now: where no thread can be had, the next one is tried
        self._wake_event.set()

    def stop(self) -> None:
        """The connection has ended: so does the thread."""
        self._wake_event.set()

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            self._wake_event.wait(wait_s)
            self._wake_event.clear()
            reader = self._reader()
            if reader is None or not reader.alive:
                return
            wait_s = reader.read_unawaited()
            del reader


def ignore_reply(pending: PendingReply) -> None:
    """Discards the reply."""


def _arrives_in_time(deadline: float, comes_within: Callable[[float], bool]) -> bool:
    """Whether it comes before the deadline; `comes_within` waits for it, for so many seconds."""
    while not comes_within(_next_wait_s(deadline)):
        if time.monotonic() >= deadline:
            return False
    return True


def _next_wait_s(deadline: float | None) -> float:
    """How many seconds to wait until it is time to look for interrupts, or the deadline."""
    if deadline is None:
        return INTERRUPTIBLE_S
    return min(INTERRUPTIBLE_S, max(0.0, deadline - time.monotonic()))
