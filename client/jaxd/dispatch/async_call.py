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
from jaxd.connection.settings import REPLY_GRACE_S
from jaxd.connection.shared_reader import PendingReply
from jaxd.dispatch.retry import BusyBackoff, RetryLimits
from jaxd.dispatch.retry_copy import RetryBudget, RetryCopy
from jaxd.dispatch.session import MAX_WORKERS, Session
from jaxd.request.call_request import CallRequest
from jaxd.results.reader import check_reply
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.base.timers import TimerThread
from jaxd_protocol.errors import Busy, ConnectionLost, DeadlineExceeded, WorkerReplaced
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.wire import INTERRUPTIBLE_S

if TYPE_CHECKING:
    from jaxd.remote_values.store import OpenSession
    from jaxd.transfer.routing import CallTransfer


_retry_budget: Final = RetryBudget()
_timers: Final = TimerThread(
    "jaxd-timers", partial(logging.getLogger("jaxd").exception, "a timer failed")
)
reset_after_fork(_timers)

DecodeReply = Callable[[CallRequest, tuple[Any, ...], Sequence[memoryview], "OpenSession"], Any]
"""Gives the result in a reply, or raises; see `Caller.outcome`."""


class AsyncCall:
    """One asynchronous call.

    Args:
        session: with the server.
        call: the call.
        outcome: gives the result in a reply.

    Attributes:
        future: settled when the reply is here, when the call cannot be made, or when its
            `timeout_s` has passed.
    """

    def __init__(self, session: Session, call: CallRequest, outcome: DecodeReply) -> None:
        self.future: CallFuture[Any] = CallFuture()
        self._session = session
        self._decode_reply = outcome
        self._call = call
        self._retry_limits = RetryLimits(call.spec.snapshot.name)
        # one each at most; who takes it out releases it, in whatever thread
        self._retry_copies: list[
            RetryCopy
        ] = []  # of what it is made again when its arrays have changed
        self._transfers: list[CallTransfer] = []  # that of the present attempt
        self._late_transfers: list[CallTransfer] = []  # that of one that nobody waits for
        self._workers = 1  # that it was sent to while one after the other was replaced
        self._attempt: tuple[OpenSession, int] | None = None
        self._window: threading.BoundedSemaphore | None = None
        self._busy_backoff: BusyBackoff | None = None
        timeout_s = call.timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.future.add_inline_callback(self._on_done)

    def start(self) -> None:
        """Sends the call; when this returns, the arguments may be overwritten.

        Waits for a place among the calls that the server takes from one connection.

        Raises:
            JaxdError: when it cannot be sent.
        """
        try:
            self._send_until_done()
        except BaseException:
            self.future.cancel()  # gives its place in the window back
            raise

    def _send_until_done(self) -> None:
        try:
            while not self._send():
                pass
        finally:
            if self.future.done():  # perhaps before all of that
                self._on_done(self.future)
                self._on_cancelled(self.future)

    def _send(self) -> bool:
        """Sends the call unless nobody wants it any more; False: its connection was lost first."""
        session = self._session
        opened = session.current(bool(self._call.buffers), self._deadline)
        connection = opened.connection
        before, call = self._call, self._retry_limits.prepare_retry(self._call, connection.worker)
        self._call = call
        replay_filter = session.output_printer().replay_filter
        replay_filter.transfer_to_retry(before, call)
        number = connection.number()
        self._attempt = (opened, number)
        if replay_filter.has_lost_calls:
            replay_filter.retried_as(call, connection, number)
        self._acquire_slot()
        if self.future.done():  # while this thread waited; then its data is gone
            return True
        try:
            transfer = session.transfer_router().prepare(
                call,
                connection,
                opened.values.deduplicator,
                copied=not self._is_repeatable,
                deadline=self._deadline,
            )
            self._transfers.append(transfer)
            if not self._is_repeatable:
                call = self._keep_copy(transfer)
            connection.submit(
                "call",
                call.message(transfer.data_locations),
                transfer.buffers,
                lambda pending: self._on_reply(opened, number, pending),
                number,
                call,
            )
        except ConnectionLost as error:
            self._release_transfer()
            self._retry_limits.record(error, None)
            return False
        self._watch_deadline(opened, number)
        return True

    def _acquire_slot(self) -> None:
        """Waits for a place in the window of its connection; one that comes again has its own."""
        window = self._session.window
        assert window is not None
        if window is not self._window:
            self._window = window
            while not window.acquire(timeout=INTERRUPTIBLE_S):
                pass
            self.future.add_inline_callback(lambda _: window.release())
            self.future.add_inline_callback(
                self._on_cancelled
            )  # last: it may take its time, or be interrupted

    @property
    def _is_repeatable(self) -> bool:
        """Whether all of it is as it was when it was made."""
        return bool(self._retry_copies) or not self._call.buffers

    def _keep_copy(self, transfer: CallTransfer) -> CallRequest:
        """The call, which can be made again when its arrays have changed, where there is room."""
        retry_copy = RetryCopy.of(self._call, transfer, _retry_budget)
        if retry_copy is None:
            return self._call
        self._retry_copies.append(retry_copy)
        self._call = retry_copy.call
        return retry_copy.call

    def _release_transfer(self, reply: tuple[Any, ...] | None = None) -> None:
        """This attempt is over.

        Args:
            reply: what came of it; None when that is no result.
        """
        with suppress(IndexError):  # somebody else was faster
            self._transfers.pop().release(reply)

    def _on_done(self, future: Future[Any]) -> None:
        """It is over: whoever keeps its future does not keep its arrays. Perhaps called twice."""
        self._call = self._call.without_data()
        with suppress(IndexError):
            transfer = self._transfers.pop()
            self._late_transfers.append(transfer._replace(data_locations=(), buffers=(), places=()))
            transfer.release()
        with suppress(IndexError):
            self._retry_copies.pop().release()

    def _on_cancelled(self, future: Future[Any]) -> None:
        """Cancels the call on the server."""
        if future.cancelled() and self._attempt is not None:
            opened, number = self._attempt
            opened.connection.cancel(number)

    def _watch_deadline(self, opened: OpenSession, number: int) -> None:
        if self._deadline is None:
            return
        late = DeadlineExceeded(
            "the call's timeout_s passed before its result arrived. The server may still be "
            "working on it; give the call more time, or submit it again later."
        )
        left_s = max(0.0, self._deadline + REPLY_GRACE_S - time.monotonic())
        timer = _timers.after(left_s, lambda: opened.connection.shared_reader.expire(number, late))
        self.future.add_inline_callback(lambda _: timer.cancel())

    def _on_reply(self, opened: OpenSession, number: int, pending: PendingReply) -> None:
        """Called by whoever reads; after an interrupt perhaps twice."""
        if self._attempt != (opened, number):
            return
        try:
            self._handle_reply(opened, number, pending)
        except Exception as error:  # noqa: BLE001  others read on, and the future's owner decides
            self._fail(error)

    def _handle_reply(self, opened: OpenSession, number: int, pending: PendingReply) -> None:
        session, connection = self._session, opened.connection
        ready = pending.error is None and check_reply(pending.value)[0] != FAILED
        self._release_transfer(pending.value if ready else None)
        with suppress(IndexError):
            self._late_transfers.pop().abandon()
        session.progress().finish(connection, number, ready=ready)
        if isinstance(pending.error, ConnectionLost):
            return self._on_lost(opened, number, pending.error)
        failed = pending.error is None and not ready
        replaced = failed and is_failure(pending.value[1], WorkerReplaced)
        if replaced:
            session.drain(connection)
        pause_s = self._pause_s(pending.value, replaced=replaced) if failed else None
        try:
            if session.warning_queue.has_pending:
                session.warning_queue.issue(connection, number)
            if failed:
                snapshot, failure = self._call.spec.snapshot, pending.value[1]
                session.callbacks().raise_failure(
                    connection, number, snapshot, failure, connection.address
                )
            if pause_s is not None:
                return self._schedule_retry(pause_s)
            value, frame = pending.result()
            result = self._decode_reply(self._call, value, frame.buffers, opened)
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            self._fail(error)
        else:
            with suppress(InvalidStateError):  # it was cancelled, or its deadline has passed
                self.future.set_result(result)
        return None

    def _on_lost(self, opened: OpenSession, number: int, error: ConnectionLost) -> None:
        """Repeats the call; see `RetryLimits`."""
        if self.future.done():
            return None  # it was cancelled, or its deadline has passed
        session, connection, name = self._session, opened.connection, self._call.spec.snapshot.name
        try:
            session.callbacks().check_repeatable(connection, number, name)
        except ConnectionLost as called_back:
            return self._fail(called_back)
        if not self._is_repeatable:
            return self._fail(
                ConnectionLost(
                    "the connection ended while a submitted call was open, and its arrays may "
                    "have changed since: there was no room for a copy of them, see "
                    "docs/reliability.md. Submit it again, or fewer at a time."
                )
            )
        session.output_printer().replay_filter.call_lost(self._call, connection, number)
        self._retry_limits.record(error, connection.worker)
        return self._schedule_retry()

    def _pause_s(self, value: Any, *, replaced: bool) -> float | None:
        """In how many seconds to come again to a server that is busy, or to its next worker.

        None when it is neither, or when the call cannot be sent again.
        """
        if not self._is_repeatable or self.future.done():
            return None
        if replaced:
            self._workers += 1
            return 0.0 if self._workers <= MAX_WORKERS else None
        if not is_failure(value[1], Busy):
            return None
        if self._busy_backoff is None:
            self._busy_backoff = BusyBackoff(self._deadline)
        return self._busy_backoff.pause_s(value)

    def _schedule_retry(self, pause_s: float = 0.0) -> None:
        timer = threading.Timer(pause_s, self._retry)
        timer.name, timer.daemon = "jaxd-repeat", True
        flight, self._attempt = self._attempt, None
        try:
            timer.start()
        except BaseException:
            if timer.ident is None:
                self._attempt = flight  # an interrupt: this is called again
            raise

    def _retry(self) -> None:
        """In a thread of its own: whoever reads must go on."""
        try:
            self._send_until_done()
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
