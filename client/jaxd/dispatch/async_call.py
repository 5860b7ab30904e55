"""Asynchronous calls: their futures, deadlines and retries."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.call_future import CallFuture
from jaxd.connection.shared_reader import PendingReply
from jaxd.dispatch.caller import Caller, OpenCall
from jaxd.dispatch.retry import RetryBudget, RetryCopy
from jaxd.request.call_request import CallRequest
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.wire import INTERRUPTIBLE_S

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection


_retry_budget: Final = RetryBudget()

_SOON_S: Final = 0.005
"""A place is given back so soon, unless calls have it that were sent ahead and nobody reads."""


def submit(caller: Caller, call: CallRequest) -> Future[Any]:
    """Makes a call without waiting; when this returns, its arguments may be overwritten.

    Waits while as many calls are in flight as the server takes from one connection.

    Raises:
        JaxdError: when the call cannot be made. Later errors are in the future.
    """
    if call.values:
        return caller.session.values().calls.submit(call)
    async_call = AsyncCall(caller, call)
    try:
        async_call.send()
    except BaseException:
        async_call.future.cancel()  # gives its place in the window back
        raise
    return async_call.future


class AsyncCall:
    """One asynchronous call.

    Args:
        caller: makes it.
        call: the request.

    Attributes:
        future: completed when the reply is here, when the call cannot be made, or when its
            `timeout_s` has passed.
    """

    def __init__(self, caller: Caller, call: CallRequest) -> None:
        self.future: CallFuture[Any] = CallFuture()
        self._session = caller.session
        self._call = OpenCall(caller.session, call)
        # one at most, from which the call is sent again when its arrays have changed; whichever
        # thread takes it out releases it
        self._retry_copies: list[RetryCopy] = []
        self._attempt: tuple[ClientConnection, int] | None = None
        self._window: threading.BoundedSemaphore | None = None
        self.future.add_inline_callback(self._on_done)

    def send(self) -> None:
        """Sends the call; when this returns, the arguments may be overwritten.

        Waits for a place among the calls that the server takes from one connection.

        Raises:
            JaxdError: when it cannot be sent.
        """
        try:
            while not self._send():
                pass
        finally:
            if self.future.done():  # perhaps before all of that
                self._on_done(self.future)
                self._on_cancelled(self.future)

    def _send(self) -> bool:
        """Sends the call unless its future is done; False: its connection was lost first."""
        call = self._call
        connection = call.begin_attempt(fresh=bool(call.call.buffers))
        attempt = self._attempt = (connection, call.number)
        self._acquire_slot(connection)
        if self.future.done():  # while this thread waited; then its data is gone
            self._release_unless_delivered()
            return True
        try:
            transfer = call.load(copied=not self._is_repeatable)
            if not self._is_repeatable:
                retry_copy = RetryCopy.of(call.call, transfer, _retry_budget)
                if retry_copy is not None:  # else there is no room for copies
                    self._retry_copies.append(retry_copy)
                    call.call = retry_copy.call
            call.may_have_changed = not self._is_repeatable
            call.is_sent = True
            pending = PendingReply(partial(self._on_reply, attempt), needs_reader=True, about=call)
            connection.launch(
                "call",
                call.call.message(transfer.data_locations),
                transfer.buffers,
                pending,
                call.number,
            )
        except ConnectionLost as error:
            call.release()
            call.check_repeatable(error)
            return False
        expire = connection.shared_reader.expire
        self.future.watch_deadline(call.deadline, partial(expire, call.number))
        return True

    def _acquire_slot(self, connection: ClientConnection) -> None:
        """Waits for a place in the connection's window; a repeated call keeps the one it has."""
        window = self._session.window
        assert window is not None
        if window is not self._window:
            self._window = window
            if not window.acquire(timeout=_SOON_S):
                connection.push()  # calls that have not gone out may have the places
                with connection.shared_reader.background_reading():
                    while not window.acquire(timeout=INTERRUPTIBLE_S):
                        pass
            self.future.add_inline_callback(lambda _: window.release())
            self.future.add_inline_callback(
                self._on_cancelled
            )  # last: it may take its time, or be interrupted

    @property
    def _is_repeatable(self) -> bool:
        """Whether all of its data is as it was when it was made."""
        return bool(self._retry_copies) or not self._call.call.buffers

    def _on_done(self, future: Future[Any]) -> None:
        """Drops the data: the future must not keep the arrays. Perhaps called twice."""
        self._call.call = self._call.call.without_data()
        self._call.abandon()
        with suppress(IndexError):
            self._retry_copies.pop().release()

    def _on_cancelled(self, future: Future[Any]) -> None:
        """Cancels the call on the server."""
        if future.cancelled() and self._attempt is not None:
            connection, number = self._attempt
            connection.cancel(number)

    def _on_reply(self, attempt: tuple[ClientConnection, int], pending: PendingReply) -> None:
        """Called by the reading thread; after an interrupt perhaps twice."""
        if self._attempt != attempt:
            return
        try:
            self._handle_reply(pending)
        except Exception as error:  # noqa: BLE001  others read on, and the future's owner decides
            self._fail(error)

    def _handle_reply(self, pending: PendingReply) -> None:
        call = self._call
        ready = call.end_attempt(pending.value, pending.error)
        call.release_abandoned()
        if isinstance(pending.error, ConnectionLost):
            return self._on_lost(pending.error)
        pause_s: float | None = None
        try:
            call.issue_warnings()
            if not ready and pending.error is None:
                pause_s = call.pause_after(pending.value[1])
            if pause_s is None or not self._is_repeatable or self.future.done():
                pause_s, result = None, call.result(*pending.result())
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            return self._fail(error)
        if pause_s is not None:
            return self._schedule_retry(pause_s)
        with suppress(InvalidStateError):  # it was cancelled, or its deadline has passed
            self.future.set_result(result)
        return None

    def _on_lost(self, error: ConnectionLost) -> None:
        """Repeats the call, unless its future is done."""
        self._call.reply_was_lost()
        if self.future.done():
            return self._release_unless_delivered()
        self._call.check_repeatable(error)
        if not self._is_repeatable:
            raise ConnectionLost(
                "the connection ended while a submitted call was open, and its arrays may "
                "have changed since: there was no room for a copy of them, see "
                "docs/reliability.md. Submit it again, or fewer at a time."
            )
        return self._schedule_retry()

    def _schedule_retry(self, pause_s: float = 0.0) -> None:
        """Sends the call again in a thread of its own: the reading thread must go on."""
        timer = threading.Timer(pause_s, self._retry)
        timer.name, timer.daemon = "jaxd-repeat", True
        attempt, self._attempt = self._attempt, None
        try:
            start_thread(timer)
        except BaseException:
            if timer.ident is None:
                self._attempt = attempt  # an interrupt: this is called again
            raise

    def _retry(self) -> None:
        try:
            self.send()
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        from jaxd.results.exceptions import hide_own_frames  # most calls raise nothing

        hide_own_frames(error)
        with suppress(InvalidStateError):
            self.future.set_exception(error)
        self._release_unless_delivered()

    def _release_unless_delivered(self) -> None:
        """The future is done: a result that was lost on its way goes, unless another one came."""
        future = self.future
        if future.cancelled() or future.exception() is not None:
            self._call.release_lost_result()


class SentCall:
    """One call that was sent, for whose result the same thread waits later.

    That costs less than a future: no thread of its own reads the reply, and wakes another one.
    """

    def __init__(
        self, caller: Caller, call: CallRequest, window: threading.BoundedSemaphore
    ) -> None:
        self._call = OpenCall(caller.session, call)
        self._places = [window]  # one at most; whichever thread takes it out gives it back
        try:
            self._call.send(self._give_place_back)
        except BaseException:
            self.cancel()
            raise

    @classmethod
    def of(cls, caller: Caller, call: CallRequest) -> SentCall | None:
        """Sends a call; None where it has to be submitted.

        Raises:
            JaxdError: when it cannot be sent.
        """
        window = caller.session.window
        if window is None or not caller.sends_ahead(call) or not window.acquire(blocking=False):
            return None
        return cls(caller, call, window)

    def push(self) -> None:
        """Has it go out now, with those that were sent before: it may wait for more of them."""
        self._call.push()

    def result(self) -> Any:
        """The result; the connection is read meanwhile.

        Raises:
            BaseException: the failure of the call.
        """
        try:
            return self._call.result(*self._call.wait())
        except BaseException as error:
            from jaxd.results.exceptions import hide_own_frames  # most calls raise nothing

            self.cancel()
            hide_own_frames(error)
            raise

    def cancel(self) -> None:
        """Nobody waits for the result any more. May be called twice, also afterwards."""
        self._call.give_up()
        self._give_place_back()

    def _give_place_back(self, _: PendingReply | None = None) -> None:
        with suppress(IndexError):
            self._places.pop().release()
