"""An asynchronous call: its future, deadline and retries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.call_future import CallFuture
from jaxd.connection.pending import WORD_S, Pending
from jaxd.dispatch.retry import Losses, Politeness
from jaxd.dispatch.retry_copy import Spare, SpareRoom
from jaxd.dispatch.session import MAX_WORKERS, Session
from jaxd.request.call_request import Encoded
from jaxd.results.reader import checked
from jaxd_protocol.base.process import forget_after_fork
from jaxd_protocol.base.timers import TimerThread
from jaxd_protocol.errors import Busy, ConnectionLost, DeadlineExceeded, WorkerReplaced
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.wire import INTERRUPTIBLE_S

if TYPE_CHECKING:
    from jaxd.remote_values.store import OpenSession
    from jaxd.transfer.routing import Load


_spare_room: Final = SpareRoom()
_timers: Final = TimerThread(
    "jaxd-timers", partial(logging.getLogger("jaxd").exception, "a timer failed")
)
forget_after_fork(_timers)

Outcome = Callable[[Encoded, tuple[Any, ...], Sequence[memoryview], "OpenSession"], Any]
"""Gives the result in a reply, or raises; see `Caller.outcome`."""


class Submission:
    """One asynchronous call.

    Args:
        session: with the server.
        call: the call.
        outcome: gives the result in a reply.

    Attributes:
        future: settled when the reply is here, when the call cannot be made, or when its
            `timeout_s` has passed.
    """

    def __init__(self, session: Session, call: Encoded, outcome: Outcome) -> None:
        self.future: CallFuture[Any] = CallFuture()
        self._session = session
        self._outcome = outcome
        self._call = call
        self._losses = Losses(call.spec.identity.name)
        # one each at most; who takes it out releases it, in whatever thread
        self._spares: list[Spare] = []  # of what it is made again when its arrays have changed
        self._loads: list[Load] = []  # that of the present attempt
        self._late: list[Load] = []  # that of one that nobody waits for
        self._workers = 1  # that it was sent to while one after the other was replaced
        self._flight: tuple[OpenSession, int] | None = None
        self._window: threading.BoundedSemaphore | None = None
        self._politeness: Politeness | None = None
        timeout_s = call.timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.future.when_done(self._done)

    def start(self) -> None:
        """Sends the call; when this returns, the arguments may be overwritten.

        Waits for a place among the calls that the server takes from one connection.

        Raises:
            JaxdError: when it cannot be sent.
        """
        try:
            self._go()
        except BaseException:
            self.future.cancel()  # gives its place in the window back
            raise

    def _go(self) -> None:
        try:
            while not self._send():
                pass
        finally:
            if self.future.done():  # perhaps before all of that
                self._done(self.future)
                self._cancel(self.future)

    def _send(self) -> bool:
        """Sends the call unless nobody wants it any more; False: its connection was lost first."""
        session = self._session
        opened = session.current(bool(self._call.buffers), self._deadline)
        connection = opened.connection
        before, call = self._call, self._losses.repeated(self._call, connection.worker)
        self._call = call
        heard = session.hearing().before
        heard.goes_on_as(before, call)
        number = connection.number()
        self._flight = (opened, number)
        if heard.is_waiting:
            heard.again(call, connection, number)
        self._take_place()
        if self.future.done():  # while this thread waited; then its data is gone
            return True
        try:
            load = session.routes.load(
                call,
                connection,
                opened.values.sent_before,
                copied=not self._is_kept,
                deadline=self._deadline,
            )
            self._loads.append(load)
            if not self._is_kept:
                call = self._keep(load)
            connection.submit(
                "call",
                call.message(load.rows),
                load.buffers,
                lambda pending: self._arrived(opened, number, pending),
                number,
                call,
            )
        except ConnectionLost as error:
            self._unload()
            self._losses.note(error, None)
            return False
        self._watch_deadline(opened, number)
        return True

    def _take_place(self) -> None:
        """Waits for a place in the window of its connection; one that comes again has its own."""
        window = self._session.window
        assert window is not None
        if window is not self._window:
            self._window = window
            while not window.acquire(timeout=INTERRUPTIBLE_S):
                pass
            self.future.when_done(lambda _: window.release())
            self.future.when_done(self._cancel)  # last: it may take its time, or be interrupted

    @property
    def _is_kept(self) -> bool:
        """Whether all of it is as it was when it was made."""
        return bool(self._spares) or not self._call.buffers

    def _keep(self, load: Load) -> Encoded:
        """The call, which can be made again when its arrays have changed, where there is room."""
        spare = Spare.of(self._call, load, _spare_room)
        if spare is None:
            return self._call
        self._spares.append(spare)
        self._call = spare.call
        return spare.call

    def _unload(self, reply: tuple[Any, ...] | None = None) -> None:
        """This attempt is over.

        Args:
            reply: what came of it; None when that is no result.
        """
        with suppress(IndexError):  # somebody else was faster
            self._loads.pop().release(reply)

    def _done(self, future: Future[Any]) -> None:
        """It is over: whoever keeps its future does not keep its arrays. Perhaps called twice."""
        self._call = self._call.without_data()
        with suppress(IndexError):
            load = self._loads.pop()
            self._late.append(load._replace(rows=(), buffers=(), places=()))
            load.release()
        with suppress(IndexError):
            self._spares.pop().release()

    def _cancel(self, future: Future[Any]) -> None:
        """Cancels the call on the server."""
        if future.cancelled() and self._flight is not None:
            opened, number = self._flight
            opened.connection.cancel(number)

    def _watch_deadline(self, opened: OpenSession, number: int) -> None:
        if self._deadline is None:
            return
        late = DeadlineExceeded(
            "the call's timeout_s passed before its result arrived. The server may still be "
            "working on it; give the call more time, or submit it again later."
        )
        left_s = max(0.0, self._deadline + WORD_S - time.monotonic())
        timer = _timers.after(left_s, lambda: opened.connection.shared_reader.expire(number, late))
        self.future.when_done(lambda _: timer.cancel())

    def _arrived(self, opened: OpenSession, number: int, pending: Pending) -> None:
        """Called by whoever reads; after an interrupt perhaps twice."""
        if self._flight != (opened, number):
            return
        try:
            self._heard(opened, number, pending)
        except Exception as error:  # noqa: BLE001  others read on, and the future's owner decides
            self._fail(error)

    def _heard(self, opened: OpenSession, number: int, pending: Pending) -> None:
        session, connection = self._session, opened.connection
        ready = pending.error is None and checked(pending.value)[0] != FAILED
        self._unload(pending.value if ready else None)
        with suppress(IndexError):
            self._late.pop().abandon()
        session.progress.finish(connection, number, ready=ready)
        if isinstance(pending.error, ConnectionLost):
            return self._lost(opened, number, pending.error)
        failed = pending.error is None and not ready
        replaced = failed and is_failure(pending.value[1], WorkerReplaced)
        if replaced:
            session.leave(connection)
        pause_s = self._pause_s(pending.value, replaced=replaced) if failed else None
        try:
            if session.notices.waiting:
                session.notices.issue(connection, number)
            if failed:
                identity, failure = self._call.spec.identity, pending.value[1]
                session.callbacks().raise_failure(
                    connection, number, identity, failure, connection.address
                )
            if pause_s is not None:
                return self._again(pause_s)
            value, frame = pending.result()
            result = self._outcome(self._call, value, frame.buffers, opened)
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            self._fail(error)
        else:
            with suppress(InvalidStateError):  # it was cancelled, or its deadline has passed
                self.future.set_result(result)
        return None

    def _lost(self, opened: OpenSession, number: int, error: ConnectionLost) -> None:
        """Repeats the call; see `Losses`."""
        if self.future.done():
            return None  # it was cancelled, or its deadline has passed
        session, connection, name = self._session, opened.connection, self._call.spec.identity.name
        try:
            session.callbacks().refuse_again(connection, number, name)
        except ConnectionLost as called_back:
            return self._fail(called_back)
        if not self._is_kept:
            return self._fail(
                ConnectionLost(
                    "the connection ended while a submitted call was open, and its arrays may "
                    "have changed since: there was no room for a copy of them, see "
                    "docs/reliability.md. Submit it again, or fewer at a time."
                )
            )
        session.hearing().before.lost(self._call, connection, number)
        self._losses.note(error, connection.worker)
        return self._again()

    def _pause_s(self, value: Any, *, replaced: bool) -> float | None:
        """In how many seconds to come again to a server that is busy, or to its next worker.

        None when it is neither, or when the call cannot be sent again.
        """
        if not self._is_kept or self.future.done():
            return None
        if replaced:
            self._workers += 1
            return 0.0 if self._workers <= MAX_WORKERS else None
        if not is_failure(value[1], Busy):
            return None
        if self._politeness is None:
            self._politeness = Politeness(self._deadline)
        return self._politeness.pause_s(value)

    def _again(self, pause_s: float = 0.0) -> None:
        timer = threading.Timer(pause_s, self._repeat)
        timer.name, timer.daemon = "jaxd-repeat", True
        flight, self._flight = self._flight, None
        try:
            timer.start()
        except BaseException:
            if timer.ident is None:
                self._flight = flight  # an interrupt: this is called again
            raise

    def _repeat(self) -> None:
        """In a thread of its own: whoever reads must go on."""
        try:
            self._go()
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
