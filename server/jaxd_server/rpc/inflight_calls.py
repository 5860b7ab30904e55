"""The calls of one connection that other threads than its reader answer; each is answered once.

That is by the thread that works on it, or earlier when it is cancelled: by its client, because its
`timeout_s` has passed, or by the server's own `--max-call-s`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from jaxd_protocol.base.timers import Timer
from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_server.execution.call import Call, Finish, Reply
from jaxd_server.rpc.callback_route import CallbackRoute
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.send_queue import SendQueue
from jaxd_server.runtime.threads.cancellation import CallPhase, CancelToken
from jaxd_server.runtime.threads.executors import process_timers


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Limits and callbacks for the calls of all connections.

    Attributes:
        max_s: seconds that a call may run; 0: any number.
        cancelled_reply: makes the reply to a cancelled call.
        ended: called with each call that was answered.
    """

    cancelled_reply: Callable[[Call], Reply]
    max_s: float = 0.0
    ended: Callable[[Call], None] = lambda call: None


_CANCELLED: Final = "the call was cancelled by its caller. Call again if its result is wanted."


def _not_withdrawn() -> bool:
    return False


def discard_reply(reply: Reply) -> None:
    """Sends nothing."""


CallState = Literal["waiting", "working", "done", "dropped", "abandoned", "over"]
"""What a call is doing.

waiting: for a thread.
working: a thread works on it.
done: no thread works on it any more, or will; it has no answer yet.
dropped: answered before a thread has begun with it, because it was cancelled.
abandoned: answered while a thread works on it.
over: done and answered.
"""

_NEXT: Final[Mapping[tuple[CallState, Literal["begin", "done", "answer"]], CallState]] = {
    ("waiting", "begin"): "working",
    ("waiting", "done"): "done",  # it was taken out of the queue
    ("waiting", "answer"): "dropped",
    ("working", "done"): "done",
    ("working", "answer"): "abandoned",
    ("done", "answer"): "over",
    ("dropped", "begin"): "abandoned",
    ("dropped", "done"): "over",
    ("abandoned", "done"): "over",
}
"""What follows; anything else changes nothing."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class InflightCall(Call):
    """A call that can be cancelled. Thread-safe.

    Attributes:
        withdraw: takes it out of the queue in which it waits; whether it was there.
        reply_when_cancelled: takes its reply when it is cancelled.
        is_ordered: whether it is one of its session's calls on values.
        first: the same call as it was sent before, over a connection that was lost.
        route: how the program of a call on values calls its client back.
    """

    withdraw: Callable[[], bool] = _not_withdrawn
    reply_when_cancelled: Callable[[Reply], None] = discard_reply
    is_ordered: bool = False
    first: InflightCall | None = None
    route: CallbackRoute | None = None
    _calls: InflightCalls = field(init=False, repr=False)
    _on_done: Callable[[], None] = field(init=False, repr=False)
    _deliverer: int = 0  # the thread that has waited for the device, for this client alone
    _is_too_long: bool = False
    _state: CallState = "waiting"
    _timers: list[Timer] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # guards _state

    def open(self, calls: InflightCalls, on_done: Callable[[], None]) -> None:
        """From now on it can be cancelled; `on_done` is called once, when no thread needs it."""
        self._calls, self._on_done = calls, on_done
        self.reply_when_cancelled = self.answer
        self.cancel_token = CancelToken()
        if self.deadline is not None:
            self._timers.append(process_timers.at(self.deadline, self._on_deadline))
        self.cancel_token.notify(self._on_cancelled)

    def run(self, phase: CallPhase, work: Callable[[], Reply]) -> None:
        """Runs the call in this thread and answers it."""
        reply = self.begin(phase) or work()
        self.done()
        self.answer(reply)

    def start_ordered(self, phase: CallPhase, start: Callable[[], Finish]) -> Finish:
        """Starts a call on values; what finishes it marks it as done."""
        refused = self.begin(phase)
        finish = start() if refused is None else lambda: refused

        def finished() -> Reply:
            reply = finish()
            self.done()
            self._deliverer = threading.get_ident()
            return reply

        return finished

    def begin(self, phase: CallPhase) -> Reply | None:
        """A thread is about to work on it; the reply when it was cancelled before."""
        self._advance("begin")  # first: either the canceller sees this, or we see the error
        # The present one refers to this object: what the call holds is freed when it is over.
        self.withdraw = _not_withdrawn
        self.cancel_token.set_phase(phase)
        policy = self._calls.policy
        if self.cancel_token.error is not None:
            return policy.cancelled_reply(self)
        if policy.max_s:
            self._timers.append(process_timers.after(policy.max_s, self._on_time_limit))
        return None

    def _advance(self, event: Literal["begin", "done", "answer"]) -> CallState:
        """Goes to the next state; returns the one before it."""
        with self._lock:
            before = self._state
            self._state = _NEXT.get((before, event), before)
            return before

    def done(self) -> None:
        """Marks that no thread works on the call any more, or will. May be called twice."""
        before = self._advance("done")
        if before in ("done", "over"):
            return
        self._on_done()
        if before in ("dropped", "abandoned"):
            self._calls.share.free(self.nbytes)

    def answer(self, reply: Reply) -> None:
        """Sends its reply, unless it has had one."""
        before = self._advance("answer")
        if before in ("dropped", "abandoned", "over"):
            return
        nbytes = self.nbytes if before == "done" else 0
        self._close()
        if self.trace is not None:
            self.end_trace()
        self._calls.policy.ended(self)
        send_queue = self._calls.send_queue
        is_own_thread = threading.get_ident() == self._deliverer
        (send_queue.now if is_own_thread else send_queue.later)(self.number, reply, nbytes)

    def forget(self) -> None:
        """Closes the call without an answer."""
        with self._lock:
            self._state = "over"
        self._on_done()
        self._close()

    def _close(self) -> None:
        """It can be cancelled no more."""
        # The present ones may refer to this object.
        self.reply_when_cancelled, self.withdraw = discard_reply, _not_withdrawn
        self.cancel_token.end()
        for timer in self._timers:
            timer.cancel()
        self._calls.remove(self)

    def answer_ordered(self, reply: Reply) -> None:
        """As `answer`, of a call on values: the reply may be of the first time that it was sent."""
        if self._state in ("waiting", "dropped"):
            self.done()
        self.answer(reply)

    def cancel(self) -> None:
        """Its client has cancelled it."""
        self.cancel_token.cancel(Cancelled(_CANCELLED))

    def cancel_unless_running(self) -> bool:
        """Its client has cancelled it, if it does not run; whether it is cancelled."""
        first = self.first or self
        if not first.cancel_token.cancel(Cancelled(_CANCELLED), unless="running"):
            return False
        self.cancel()
        return True

    def join(self, first: InflightCall) -> None:
        """It is a call on values that was sent before, whose reply it gets."""
        self.first = first
        self.cancel_token.notify(first.cancel)
        if first.route is not None and self.route is not None:
            first.route.move_to(self.route)

    def stop_waiting(self, before: float = math.inf) -> None:
        """A client that was lost before then is not waited for any more; see `CallbackRoute`."""
        if self.route is not None:
            self.route.give_up(before)

    def drop(self) -> None:
        """Its client is gone: answers it when no thread has begun it."""
        if self.withdraw():
            self.done()
            self.answer(self._calls.policy.cancelled_reply(self))

    def _on_deadline(self) -> None:
        self.cancel_token.cancel(
            DeadlineExceeded(
                f"the call's timeout_s passed: {self.cancel_token.account()}. Give the call more "
                "time, or wait and repeat it."
            )
        )

    def _on_time_limit(self) -> None:
        max_s = self._calls.policy.max_s
        left_s = max_s - self.cancel_token.spent()["running"]
        if left_s > 0:  # it has waited, or was built, meanwhile
            self._timers.append(process_timers.after(left_s, self._on_time_limit))
            return
        self._is_too_long = True
        self.cancel_token.cancel(
            DeadlineExceeded(
                f"the call ran longer than the {max_s:g} s that this server gives one "
                f"(--max-call-s): {self.cancel_token.account()}. Split it into shorter calls, or "
                "use a server with another limit."
            )
        )

    def _on_cancelled(self) -> None:
        if self._state == "waiting":  # its data is freed before a thread takes it
            self.blob, self.buffers = b"", ()
        if self.withdraw():
            self.done()
        if self.is_ordered and self.cancel_token.phase == "running" and not self._is_too_long:
            return  # the real reply, which has what it did to values, is sent when it is over
        self.cancel_token.is_client_notified = True
        self.reply_when_cancelled(self._calls.policy.cancelled_reply(self))


class InflightCalls:
    """The calls of one connection, by their numbers. Thread-safe: each step on the dict is atomic.

    Args:
        policy: limits and callbacks.
        send_queue: takes their replies.
        share: what they hold of the budget.

    Attributes:
        policy, send_queue, share: the same.
    """

    def __init__(self, policy: CallPolicy, send_queue: SendQueue, share: ConnectionShare) -> None:
        self.policy = policy
        self.send_queue = send_queue
        self.share = share
        self._open: dict[int, InflightCall] = {}

    @contextmanager
    def opened(
        self, call: InflightCall, on_done: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Adds a call; within the block it is handed to the thread that will answer it."""
        self._open[call.number] = call
        call.open(self, on_done)
        try:
            yield
        except BaseException:  # there is none, and the caller gives back the call's bytes
            call.forget()
            raise

    def remove(self, call: InflightCall) -> None:
        """Takes out a call that is answered."""
        self._open.pop(call.number, None)

    def cancel(self, number: int) -> None:
        """The client has cancelled the call with that number."""
        call = self._open.get(number)
        if call is not None:
            call.cancel()

    def withdraw(self, number: int) -> bool:
        """Cancels the call with that number unless it runs; whether it did.

        What runs takes what it was given for good: its client wants its result.
        """
        call = self._open.get(number)
        return call is not None and call.cancel_unless_running()

    def close(self) -> list[InflightCall]:
        """The client is gone: what has not begun is dropped.

        Returns:
            What has, and goes on: the client may come back for it.
        """
        for call in list(self._open.values()):
            call.drop()
        return list(self._open.values())
