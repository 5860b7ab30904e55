"""The client's end of a connection: many callers, one reader at a time, no needless thread.

A caller that waits alone reads its own reply. When several wait, one of them reads for all, and
hands on the reading when its own reply has come. Calls that nobody waits for (`submit`) are read
by a thread of the connection's own. An interrupted caller leaves at any point; reading goes on
where it stopped (see `jaxd_protocol.wire.reading`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from rpyc.core.service import VoidService

from jaxd.attendant import Attendant
from jaxd.forking import forget_after_fork
from jaxd.pending import Answers, Pending
from jaxd_protocol.calls import FAILED
from jaxd_protocol.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    PackingError,
)
from jaxd_protocol.failures import describe_failure
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream, Frame, Value
from jaxd_protocol.wire.patience import Patience

__all__ = ["ClientConnection"]

_LARGE_BYTES = 1 << 16


class ClientConnection(BulkConnection):
    """An open, authenticated connection. Thread-safe.

    Args:
        stream: connected, past the handshake.
        max_frame_bytes: what the server takes.
        answers: who answers the server's questions.
    """

    def __init__(self, stream: BulkStream, max_frame_bytes: int, answers: Answers) -> None:
        super().__init__(VoidService(), BulkChannel(stream, max_frame_bytes), {})
        self._answers = answers
        self._pending: dict[int, Pending] = {}
        self._lock = threading.Lock()  # guards _reading, _unattended and the entries of _pending
        self._reading = False  # whether some thread is in charge of reading
        self._leader: int | None = None  # the thread that reads
        self._turn = 0  # grows when a thread gives the reading up before it is done
        self._dispatching = False
        self._unattended = 0  # requests whose reply nobody waits for
        self._attendant = Attendant(self)
        self._patience = Patience(stream.readiness())
        forget_after_fork(self)

    @property
    def alive(self) -> bool:
        """Whether requests can still be made."""
        return not self._closed

    def check(self) -> None:
        """Notices that the server has ended an idle connection, which nobody reads."""
        if not self._pending and not self._closed and self._channel.stream.has_ended():
            self.shut()

    def number(self) -> int:
        """A number for the next request, which names it in events as well."""
        return next(self.numbers)

    def request(
        self,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview] = (),
        deadline: float | None = None,
        number: int | None = None,
    ) -> tuple[Value, Frame]:
        """The server's reply, and the frame with its buffers.

        Args:
            verb: what to call.
            args: plain values.
            buffers: bulk data beside them.
            deadline: `time.monotonic()` after which to stop waiting.
            number: the request's number, from `number()`, when the caller has to know it.

        Raises:
            ConnectionLost: when the connection ended before the reply came.
            DeadlineExceeded: when the deadline passed.
            LimitExceeded: when the request is larger than the server takes.
        """
        seq = next(self.numbers) if number is None else number
        pending = self._pending[seq] = Pending()
        try:
            self._send(seq, verb, args, buffers)
            self._wait(pending, deadline)
        except BaseException:
            self._give_up(seq, pending)
            raise
        return pending.result()

    def submit(
        self,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview],
        then: Callable[[Pending], None],
        number: int,
    ) -> None:
        """Sends a request whose reply goes to `then`; when it returns, `buffers` may change.

        Raises:
            ConnectionLost: when it could not be sent and `then` was not called.
            LimitExceeded: when the request is larger than the server takes.
        """
        pending = self._pending[number] = Pending(then)
        with self._lock:
            self._unattended += 1
        try:
            self._attend()
            self._send(number, verb, args, buffers)
        except BaseException as error:
            told = not self._forget(number, pending)
            if told and isinstance(error, ConnectionLost):
                return  # `then` knows
            raise
        if self._closed:
            self._fail_all(ConnectionLost(_LOST))

    def _send(
        self, seq: int, verb: str, args: tuple[Value, ...], buffers: Sequence[memoryview]
    ) -> None:
        if self._closed:
            raise ConnectionLost(_LOST)
        if len(self._pending) > 1 and sum(map(len, buffers)) > _LARGE_BYTES:
            self._attend()  # replies must be taken while this thread is stuck in sending
        try:
            self.send_request(seq, verb, args, buffers)
        except EOFError as error:
            lost = ConnectionLost(_LOST)
            self._fail_all(lost, error)
            raise lost from error

    # reading ----------------------------------------------------------------------------------

    def _wait(self, pending: Pending, deadline: float | None) -> None:
        self._step_down()
        while not pending.done:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    "the call's timeout_s passed before its result arrived. The server may still "
                    "be working on it; give the call more time, or wait and repeat it."
                )
            leading = False
            gate = None
            try:
                with self._lock:
                    if self._reading:
                        gate = pending.gate = threading.Lock()
                        gate.acquire()
                    else:
                        leading = True  # first, so that an interrupt in between is made good
                        self._reading = True
                if leading:
                    leading = self._read_until(lambda: pending.done, deadline)
                elif gate is not None and not pending.done:
                    gate.acquire(timeout=-1 if deadline is None else _left(deadline))
            finally:
                pending.gate = None
                self._hand_on(leading)

    def _read_until(self, enough: Callable[[], bool], deadline: float | None = None) -> bool:
        """Reads and dispatches for everybody; the connection's end is dispatched as well.

        Returns:
            Whether this thread is still in charge of reading; see `_step_down`.
        """
        reader = self._channel.reader
        me = self._leader = threading.get_ident()
        turn = self._turn
        try:
            while not enough():
                if deadline is not None and not self._channel.poll(_left(deadline)):
                    break
                if not reader.has_input():
                    self._patience.wait()
                frame = reader.peek()
                try:
                    self._dispatching = True
                    self.dispatch(frame)
                finally:
                    self._dispatching = False
                if turn != self._turn:
                    return False
                reader.advance()
        except JaxdError as error:  # first: some of them are OSErrors as well
            self._fail_all(error)
        except (EOFError, OSError) as error:
            self._fail_all(ConnectionLost(_LOST), error)
        return self._leader == me and turn == self._turn

    def _step_down(self) -> None:
        """Gives the reading up where this very thread has it and is about to wait for a reply.

        It has when a future's callback makes a call of its own, and when an interrupt came just
        before it could hand on.
        """
        if not self._reading or self._leader != threading.get_ident():
            return
        with self._lock:
            if self._dispatching:
                self._channel.reader.advance()  # the callback belongs to that message
            self._turn += 1
            self._reading = False

    def _hand_on(self, leading: bool) -> None:
        """Somebody else becomes the reader, if there is anybody and nobody reads already."""
        with self._lock:
            if leading:
                self._reading = False
                self._leader = None
            elif self._reading:
                return
            if not self._pending:
                return
            waiting = (p for p in list(self._pending.values()) if p.gate is not None and not p.done)
            successor = next(waiting, None)
        if successor is not None:
            successor.wake()
        elif self._unattended:
            self._attend()

    def _attend(self) -> None:
        """Makes sure that the connection's own thread reads when nobody else does."""
        with self._lock:
            if not self._reading:
                self._attendant.want()

    def attend_once(self) -> None:
        """The connection's own thread reads until no reply is left that nobody waits for."""
        with self._lock:
            if self._reading:
                return  # that reader will hand on
            self._reading = True
        leading = True
        try:
            leading = self._read_until(lambda: not self._unattended)
        finally:
            self._hand_on(leading)

    def _give_up(self, seq: int, pending: Pending) -> None:
        """A caller stops waiting: somebody has to take its reply out of the socket all the same."""
        self._step_down()
        with self._lock:
            if self._closed or self._pending.get(seq) is not pending:
                self._pending.pop(seq, None)
                return
            pending.then = _ignore
            self._unattended += 1
        self._attend()

    def _forget(self, seq: int, pending: Pending) -> bool:
        """Strikes a request off; whether it was still open."""
        with self._lock:
            found = self._pending.pop(seq, None) is not None
            if found and pending.then is not None:
                self._unattended -= 1
            return found

    def shut(self) -> None:
        """Ends the connection; its own thread ends with it."""
        super().shut()
        self._attendant.dismiss()

    def retire(self) -> None:
        """Ends the connection on purpose: open requests fail, and nobody repeats them."""
        error = Cancelled(
            "the client was closed while the call was open. Keep it open until the result is here."
        )
        self._finish_all(error)
        self.shut()

    def expire(self, number: int, error: Exception) -> None:
        """Ends a submitted request with `error`; its reply is dropped when it comes."""
        with self._lock:
            pending = self._pending.get(number)
            if pending is None or pending.done or pending.then is None:
                return
            self._pending[number] = Pending(_ignore)
        pending.error = error
        pending.done = True
        pending.then(pending)

    # what arrives -----------------------------------------------------------------------------

    def on_reply(self, seq: int, value: Value, failed: bool, frame: Frame) -> None:
        """A reply came; each step may be repeated, because an interrupt may fall in between."""
        pending = self._pending.get(seq)
        if pending is None:
            return
        if failed:
            pending.error = value if isinstance(value, Exception) else ConnectionLost(str(value))
        pending.value, pending.frame = value, frame
        self._finish(seq, pending)

    def _finish(self, seq: int, pending: Pending) -> None:
        pending.done = True
        pending.wake()
        then = pending.then
        self._forget(seq, pending)
        if then is not None:
            then(pending)

    def _fail_all(self, error: Exception, cause: Exception | None = None) -> None:
        self.shut()
        error.__cause__ = cause
        self._finish_all(error)

    def _finish_all(self, error: Exception) -> None:
        for seq, pending in list(self._pending.items()):
            pending.error = error
            self._finish(seq, pending)

    def on_request(self, seq: int, verb: str, args: tuple[Value, ...], frame: Frame) -> None:
        """The server reports an event, or asks something while a call of ours is open."""
        if verb == "event":
            number, kind, content = args
            self._answers.event(self, number, kind, json.loads(content))
            return
        # in a thread of its own: an answer may be large, and whoever reads must go on reading
        threading.Thread(
            target=self._answer, args=(seq, verb, args), name="jaxd-answer", daemon=True
        ).start()

    def _answer(self, seq: int, verb: str, args: tuple[Value, ...]) -> None:
        try:
            self.send_reply(seq, *self._question(verb, args))
        except (EOFError, JaxdError, KeyError):
            self.shut()  # the server must not wait for an answer that does not come

    def _question(self, verb: str, args: tuple[Value, ...]) -> tuple[Value, Sequence[memoryview]]:
        try:
            return self._answers.question(verb, args)
        except PackingError as error:  # the call that it is asked for fails with it
            return (FAILED, describe_failure(error)), ()

    def after_fork(self) -> None:
        """In the child of a fork: the parent's requests are none of the child's business."""
        self.abandon()
        self._lock = threading.Lock()
        self._pending = {}


_LOST = "the connection to the server ended while a call was open."


def _ignore(pending: Pending) -> None:
    """Takes the reply that nobody waits for any more."""


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
