"""The future of a submitted call, whose callbacks run in a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from jaxd.connection.settings import REPLY_GRACE_S
from jaxd_protocol.base.process import reset_after_fork, start_thread
from jaxd_protocol.base.timers import TimerThread
from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_protocol.wire import INTERRUPTIBLE_S

T = TypeVar("T")

_ASYNCIO_CALLBACK_MODULE: Final = "asyncio.futures"
"""The module of the callback of `asyncio.wrap_future`: it is quick, and waited for."""


class CallFuture(Future[T]):
    """A future that is completed by the thread that reads the connection.

    What is given to `add_done_callback` before then runs in a thread for callbacks, one after the
    other: it may block, and make calls. Afterwards it runs at once, as with any future.

    Args:
        may_cancel: asked whether the call can still be cancelled; None: it always can.
    """

    def __init__(self, may_cancel: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self._may_cancel = may_cancel
        self._is_being_cancelled = False
        self._cancellation = threading.Lock()  # taken by the thread that notifies of it

    def cancel(self) -> bool:
        """See `concurrent.futures.Future.cancel`; waiting threads are notified as well.

        False also for a call that runs and was given arguments for good (`donate_argnums`): what
        becomes of these is in its result.
        """
        if self._may_cancel is not None and not self.done():
            self._is_being_cancelled = True
            if not self._may_cancel():
                return False
        return self._cancelled()

    def set_exception(self, exception: BaseException | None) -> None:
        """See `concurrent.futures.Future.set_exception`.

        The server's answer to a call that it was asked to cancel may come before the call of
        `cancel` goes on.
        """
        is_answer = self._is_being_cancelled and isinstance(exception, Cancelled)
        if not (is_answer and self._cancelled()):
            super().set_exception(exception)

    def _cancelled(self) -> bool:
        if not super().cancel():
            return False
        if self._cancellation.acquire(blocking=False):
            self.set_running_or_notify_cancel()
        return True

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """See `concurrent.futures.Future.add_done_callback`."""
        if self.done() or getattr(fn, "__module__", None) == _ASYNCIO_CALLBACK_MODULE:
            super().add_done_callback(fn)
        else:
            super().add_done_callback(partial(_callback_thread.run, fn))

    def result(self, timeout: float | None = None) -> T:
        """See `concurrent.futures.Future.result`."""
        self._wait_interruptibly(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `concurrent.futures.Future.exception`."""
        self._wait_interruptibly(timeout)
        return super().exception(timeout)

    def _wait_interruptibly(self, timeout: float | None) -> None:
        """Waits in pieces; see `BulkStream.stay_interruptible`."""
        while timeout is None and not self.done():
            with suppress(TimeoutError, CancelledError):
                super().exception(INTERRUPTIBLE_S)

    def watch_deadline(
        self, deadline: float | None, give_up: Callable[[DeadlineExceeded], object]
    ) -> None:
        """Has the call given up where the future is not done in time.

        Args:
            deadline: `time.monotonic()` at which the server should have answered; None: never.
            give_up: called in a thread for timers, with what becomes of the call then.
        """
        if deadline is None:
            return
        late = DeadlineExceeded(
            "the call's timeout_s passed before its result arrived. The server may still be "
            "working on it; give the call more time, or submit it again later."
        )
        timer = _call_timers.at(deadline + REPLY_GRACE_S, partial(give_up, late))
        self.add_inline_callback(lambda _: timer.cancel())

    def add_inline_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Adds a quick callback that runs in the thread that completes the future."""
        super().add_done_callback(fn)


def complete(future: Future[T], make: Callable[[], T]) -> None:
    """Completes a future with what is made, or with what that raises; unless it was cancelled."""
    try:
        result = make()
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        with suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(result)


class _CallbackThread:
    """Runs callbacks in order, in one thread per process, started at the first one."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: the thread is the parent's, and so is what waits for it."""
        self._waiting: SimpleQueue[tuple[Callable[[Future[Any]], object], Future[Any]]]
        self._waiting = SimpleQueue()
        self._lock = threading.Lock()  # guards the start
        self._started = False

    def run(self, fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
        """Returns at once."""
        self._waiting.put((fn, future))
        with self._lock:
            if not self._started:
                start_thread(
                    threading.Thread(target=self._run_callbacks, name="jaxd-callbacks", daemon=True)
                )
                self._started = True  # now: where no thread can be had, the next one is tried

    def _run_callbacks(self) -> None:
        while True:
            fn, future = self._waiting.get()
            try:
                fn(future)
            except BaseException:
                logging.getLogger("concurrent.futures").exception(
                    "exception calling callback for %r", future
                )
            del fn, future  # while it waits for the next one, nothing is kept


_callback_thread: Final = _CallbackThread()

_call_timers: Final = TimerThread(
    "jaxd-timers", partial(logging.getLogger("jaxd").exception, "a timer failed")
)
reset_after_fork(_call_timers)
