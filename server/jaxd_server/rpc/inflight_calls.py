"""The calls of one connection that are in flight in other threads: each is answered once.

That is by the thread that works on it, or before that, when nobody waits for it any more: its
client has said so, its `timeout_s` has passed, or the server's own `--max-call-s`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from jaxd_protocol.base.timers import Timer
from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_server.execution.call import Call, Finish, Reply
from jaxd_server.runtime.threads.cancellation import CallPhase, CancelToken
from jaxd_server.runtime.threads.executors import process_timers

Send = Callable[[Reply, int], None]
"""Sends a reply, and gives back the call's slot and so many bytes."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Limits and callbacks for the calls of all connections.

    Attributes:
        max_s: seconds that a call may run; 0: any number.
        cancelled_reply: makes the reply to a call for which nobody waits any more.
        ended: called with each call that was answered.
    """

    cancelled_reply: Callable[[Call], Reply]
    max_s: float = 0.0
    ended: Callable[[Call], None] = lambda call: None


class InflightCall:
    """A call in flight. Thread-safe.

    Args:
        call: the request.
        nbytes: what it holds of the budget.
        terms: what holds for it.
        send: sends its reply.
        send_now: the same from a thread that works for its client alone.
        free: gives bytes back.
        over: called once, when no thread works on it any more.

    Attributes:
        reply_when_cancelled: what takes its reply when nobody waits for it any more.
        withdraw: takes it out of where it waits, if it does; whether it did.
        cancel_token: the cancel token of the call.
        has_begun: whether a thread works on it, or has.
        is_in_order: whether it is one of its session's calls on values.
        deliverer: the thread that has waited for the device, for this client alone.
    """

    def __init__(
        self,
        call: Call,
        nbytes: int,
        terms: CallPolicy,
        send: Send,
        send_now: Send,
        free: Callable[[int], None],
        over: Callable[[], None],
    ) -> None:
        self.reply_when_cancelled: Callable[[Reply], None] = self.answer
        self.withdraw: Callable[[], bool] = _not_withdrawn
        self.cancel_token = call.cancel_token = CancelToken()
        self.has_begun = False
        self.is_in_order = False
        self.deliverer = 0
        self._is_too_long = False
        self._call = call
        self._nbytes = nbytes
        self._policy = terms
        self._send = send
        self._send_now = send_now
        self._free = free
        self._on_done = over
        self._is_done = False
        self._is_answered = False
        self._timers: list[Timer] = []
        self._lock = threading.Lock()  # guards _is_done and _is_answered
        if call.deadline is not None:
            self._timers.append(process_timers.at(call.deadline, self._on_deadline))
        self.cancel_token.notify(self._on_cancelled)

    def begin(self, phase: CallPhase) -> Reply | None:
        """A thread is about to work on it; the reply when there is nothing to do any more."""
        self.has_begun = True  # first: who gives it up sees this, or we see that somebody has
        # The present one refers to this object: what the call holds is freed when it is over.
        self.withdraw = _not_withdrawn
        self.cancel_token.set_phase(phase)
        if self.cancel_token.error is not None:
            return self._policy.cancelled_reply(self._call)
        if self._policy.max_s:
            self._timers.append(process_timers.after(self._policy.max_s, self._on_time_limit))
        return None

    def done(self) -> None:
        """Marks that no thread works on the call any more, or will."""
        with self._lock:
            was_done, self._is_done = self._is_done, True
            is_late = self._is_answered
        if was_done:
            return
        self._on_done()
        if is_late:
            self._free(self._nbytes)

    def answer(self, reply: Reply) -> None:
        """Sends its reply, unless it has had one."""
        with self._lock:
            if self._is_answered:
                return
            self._is_answered = True
            nbytes = self._nbytes if self._is_done else 0
        # The present ones may refer to this object.
        self.reply_when_cancelled, self.withdraw = _discard_reply, _not_withdrawn
        self.cancel_token.end()
        for timer in self._timers:
            timer.cancel()
        self._policy.ended(self._call)
        send = self._send_now if threading.get_ident() == self.deliverer else self._send
        send(reply, nbytes)

    def forget(self) -> None:
        """Closes the call without an answer."""
        with self._lock:
            self._is_answered = self._is_done = True
        self._on_done()
        self.cancel_token.end()
        for timer in self._timers:
            timer.cancel()

    def answer_ordered(self, reply: Reply) -> None:
        """As `answer`, of a call on values: the reply may be of the first time that it was sent."""
        if not self.has_begun:
            self.done()
        self.answer(reply)

    def cancel(self) -> None:
        """Its client does not wait for it any more."""
        self.cancel_token.cancel(
            Cancelled("the call was cancelled by its caller. Call again if its result is wanted.")
        )

    def drop(self) -> None:
        """Its client is gone: if it has not begun, nobody else will want it."""
        if self.withdraw():
            self.done()
            self.answer(self._policy.cancelled_reply(self._call))

    def _on_deadline(self) -> None:
        self.cancel_token.cancel(
            DeadlineExceeded(
                f"the call's timeout_s passed: {self.cancel_token.account()}. Give the call more "
                "time, or wait and repeat it."
            )
        )

    def _on_time_limit(self) -> None:
        left_s = self._policy.max_s - self.cancel_token.spent()["running"]
        if left_s > 0:  # it waited, or was built, meanwhile
            self._timers.append(process_timers.after(left_s, self._on_time_limit))
            return
        self._is_too_long = True
        self.cancel_token.cancel(
            DeadlineExceeded(
                f"the call ran longer than the {self._policy.max_s:g} s that this server gives one "
                f"(--max-call-s): {self.cancel_token.account()}. Split it into shorter calls, or "
                "use a server with another limit."
            )
        )

    def _on_cancelled(self) -> None:
        if self.withdraw():
            self.done()
        if not self.has_begun:  # and its data need not wait for a thread to look at it
            self._call.blob, self._call.buffers = b"", ()
        if self.is_in_order and self.cancel_token.phase == "running" and not self._is_too_long:
            return  # its client gets the real reply, with what it did to values, when it is over
        self.cancel_token.is_client_notified = True
        self.reply_when_cancelled(self._policy.cancelled_reply(self._call))


def _not_withdrawn() -> bool:
    return False


def _discard_reply(reply: Reply) -> None:
    """It has had one."""


class InflightCalls:
    """Those of one connection, by their numbers. Thread-safe: each step on the dict is atomic.

    Args:
        terms: what holds for them.
        send: sends the reply to the call of that number, from any thread.
        send_now: the same from a thread that works for this client alone.
        free: gives bytes back.
    """

    def __init__(
        self,
        terms: CallPolicy,
        send: Callable[[int, Reply, int], None],
        send_now: Callable[[int, Reply, int], None],
        free: Callable[[int], None],
    ) -> None:
        self._policy = terms
        self._send = send
        self._send_now = send_now
        self._free = free
        self._open: dict[int, InflightCall] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(
        self, call: Call, nbytes: int, over: Callable[[], None] = lambda: None
    ) -> Iterator[InflightCall]:
        """A call that holds so many bytes; within the block somebody is found to answer it."""
        number = call.number

        def settled(send: Callable[[int, Reply, int], None], reply: Reply, nbytes: int) -> None:
            self._open.pop(number, None)
            send(number, reply, nbytes)

        now, later = partial(settled, self._send_now), partial(settled, self._send)
        one = InflightCall(call, nbytes, self._policy, later, now, self._free, over)
        self._open[number] = one
        try:
            yield one
        except BaseException:  # nobody was, and its bytes are given back by who could not
            del self._open[number]
            one.forget()
            raise

    def cancel(self, number: int) -> None:
        """The client does not wait for that call any more."""
        one = self._open.get(number)
        if one is not None:
            one.cancel()

    def close(self) -> list[InflightCall]:
        """The client is gone: what has not begun is dropped.

        Returns:
            What has, and goes on: the client may come back for it.
        """
        for one in list(self._open.values()):
            one.drop()
        return list(self._open.values())


def answer_in_phase(one: InflightCall, phase: CallPhase, work: Callable[[], Reply]) -> None:
    """Runs a call in this thread and answers it."""
    reply = one.begin(phase) or work()
    one.done()
    one.answer(reply)


def start_ordered(one: InflightCall, phase: CallPhase, start: Callable[[], Finish]) -> Finish:
    """Starts a call on values; what finishes it says so."""
    refused = one.begin(phase)
    finish = start() if refused is None else lambda: refused

    def finished() -> Reply:
        reply = finish()
        one.done()
        one.deliverer = threading.get_ident()
        return reply

    return finished
