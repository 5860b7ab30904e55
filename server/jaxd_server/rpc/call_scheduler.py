"""Schedules the calls of one connection: which thread runs each of them, and when.

The reading thread, when that takes no time; the call queue of its session, when it works on
values; else one of the threads for calls that run, or a thread of its own while it is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from jaxd_protocol.errors import Busy, JaxdError, LimitExceeded, ProtocolError
from jaxd_protocol.messages.calls import (
    FAILED,
    FROM_CALLBACK,
    LOST_AGAIN,
    LOST_ONCE,
    MAY_REPEAT,
    ON_VALUES,
    STRICT,
    WARM,
)
from jaxd_protocol.messages.data_locations import ResultPolicy, decompressed_bytes
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire import Frame, Value
from jaxd_protocol.wire.frames import too_large
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Plan
from jaxd_server.execution.call import Call, Finish, Reply
from jaxd_server.rpc.client_proxy import ClientProxy
from jaxd_server.rpc.context import WorkerContext
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.inflight_calls import (
    InflightCall,
    InflightCalls,
    answer_in_phase,
    start_ordered,
)
from jaxd_server.rpc.send_queue import SendQueue
from jaxd_server.rpc.sessions import Session, SessionState
from jaxd_server.runtime.threads.cancellation import CallPhase

_RESULT_ONLY: Final = MAY_REPEAT | ON_VALUES | FROM_CALLBACK
"""Flags of calls that want a result and nothing else: what was warm before answers them."""


class CallScheduler:
    """The calls of one connection. For its reading thread.

    Args:
        worker_context: what it shares with the others.
        session: whose connection it is.
        share: what the connection may have under way.
        session_state: what it has of its session.
        send_queue: takes replies.
        client: answers questions about calls, and takes their events.
    """

    def __init__(
        self,
        worker_context: WorkerContext,
        session: Session,
        share: ConnectionShare,
        session_state: SessionState,
        send_queue: SendQueue,
        client: ClientProxy,
    ) -> None:
        self._worker_context = worker_context
        self._session = session
        self._share = share
        self._session_state = session_state
        self._send_queue = send_queue
        self._client = client
        self._open = InflightCalls(
            worker_context.policy, send_queue.later, send_queue.now, share.free
        )

    def cancel(self, number: int) -> None:
        """The client does not wait for that call any more."""
        self._open.cancel(number)

    def close(self) -> None:
        """The client is gone: what has not begun is dropped; it may come back for the rest."""
        self._session.unanswered.add(self._open.close(), time.monotonic())

    def schedule(
        self, seq: int, args: tuple[Value, ...], frame: Frame
    ) -> Callable[[], object] | None:
        """Has a call answered.

        Returns:
            What the reading thread is to run itself, because it takes no time; None when another
            thread answers the call.

        Raises:
            ProtocolError: when it cannot be read.
        """
        try:
            key, skeleton, blob, timeout_s, flags, stay, elsewhere, drops = args
        except ValueError as error:
            raise ProtocolError("a call does not have the eight values that it should.") from error
        inflated = self._reserve(decompressed_bytes(elsewhere)) if elsewhere else 0
        nbytes = self._share.begin()
        try:
            skeleton = self._session_state.skeleton(skeleton)
            client, session = self._client, self._session
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            repeatable, emit = bool(flags & MAY_REPEAT), partial(client.emit, seq)
            call = Call(key, skeleton, blob, frame.buffers, client, deadline, repeatable, seq, emit)
            call.strict = bool(flags & STRICT)
            call.warm_only = bool(flags & WARM)
            call.call_back = partial(client.call_back, seq)
            call.inside = bool(flags & FROM_CALLBACK)
            call.lost = 2 if flags & LOST_AGAIN else flags & LOST_ONCE and 1
            call.session = session
            call.referenced_data = self._session_state.referenced_data
            if stay:
                call.stay = ResultPolicy.from_bytes(stay)
            if drops:
                self._session_state.drop(drops)
            if elsewhere:
                call.elsewhere = elsewhere
                call.inflated = inflated
            pipeline = self._worker_context.pipeline
            plan = pipeline.executables.plan(key, skeleton, session.device)
            # What runs the call, when there is nothing that it would have to wait for.
            warm = None if plan is None or pipeline.admission.is_barred else plan.executable
            is_quick = flags & ~ON_VALUES <= MAY_REPEAT and warm is not None and warm.runs_quickly
            if flags & ~_RESULT_ONLY:
                plan = None
            if elsewhere and flags & ON_VALUES:
                return self._enqueue_ordered(call, plan, warm, nbytes, is_quick)
            if is_quick:
                return partial(self._answer, call, plan, nbytes)
            self._submit(call, plan, warm, nbytes)
        except BaseException:
            self._share.end_call(nbytes)
            raise
        return None

    def _reserve(self, nbytes: int) -> int | JaxdError:
        """Has so many bytes admitted as if they had been sent; returns them, or why they are not.

        The error is for the call to raise when its turn comes: those on values go in order.
        """
        if not nbytes:
            return 0
        try:
            if nbytes > self._worker_context.max_frame_bytes:
                raise LimitExceeded(too_large(nbytes, self._worker_context.max_frame_bytes))
            self._share.admit_strictly(nbytes)
        except JaxdError as error:
            return error
        return nbytes

    def _enqueue_ordered(
        self,
        call: Call,
        plan: Plan | None,
        warm: Executable | None,
        nbytes: int,
        is_quick: bool,
    ) -> Callable[[], object] | None:
        """A call on values: in order with the others of its session, and never twice.

        Returns:
            As `schedule`.
        """
        if call.stay is None:
            raise ProtocolError("a call on values does not say what is to stay.")
        start: Callable[[], Finish] = partial(self._worker_context.pipeline.start, call, plan)

        def send(reply: Reply) -> None:
            self._send_queue.now(call.number, reply, nbytes)

        is_short = warm is not None and warm.starts_quickly
        if is_quick:  # also when it waits for others, it is not worth being able to give it up
            here = self._session_state.is_idle
            _, go_on = self._session_state.enqueue(
                call.stay, start, send, here=here, is_short=is_short
            )
            return go_on if here or is_short else go_on()
        phase: CallPhase = "waiting" if plan is None or plan.executable is None else "running"
        with self._open.opened(call, nbytes) as one:
            one.is_in_order = True
            one.reply_when_cancelled = partial(self._session.reply_cache.answer, call.stay.number)
            begin = partial(start_ordered, one, phase, start)
            is_new, go_on = self._session_state.enqueue(
                call.stay, begin, one.answer_ordered, here=False, is_short=is_short
            )
            if is_new:
                self._session.ordered_calls[call.stay.number] = one
            else:
                one.reply_when_cancelled = (
                    _discard_reply  # the first decides what happens to values
                )
                first = self._session.ordered_calls.get(call.stay.number)
                if first is not None:
                    one.cancel_token.notify(first.cancel)
            return go_on if is_short else go_on()

    def _submit(self, call: Call, plan: Plan | None, warm: Executable | None, nbytes: int) -> None:
        """Has a call answered by another thread, unless too many wait for one already."""
        backlog, principal = self._worker_context.backlog, self._session.principal
        try:
            backlog.acquire(principal)
        except Busy as error:
            refused = (FAILED, encode_failure(error))
            reply = refused if call.stay is None else (*refused, b"")
            return self._send_queue.later(call.number, (reply, ()), nbytes)
        over = partial(backlog.release, principal)
        with self._open.opened(call, nbytes, over) as one:
            return self._in_other_thread(one, call, plan, is_warm=warm is not None)

    def _in_other_thread(
        self, one: InflightCall, call: Call, plan: Plan | None, *, is_warm: bool
    ) -> None:
        """Has another thread answer a call: one of a few when it is warm, else one of its own."""
        work = partial(self._worker_context.pipeline.answer, call, plan)
        if not is_warm:  # who waits keeps a thread
            self._worker_context.builders.submit(answer_in_phase, one, "waiting", work)
            return
        runners, owner = self._worker_context.runners, self._session.id
        job = partial(answer_in_phase, one, "running", work)
        one.withdraw = partial(runners.withdraw, owner, job)
        runners.submit(owner, job)

    def _answer(self, call: Call, plan: Plan | None, nbytes: int) -> None:
        self._send_queue.now(call.number, self._worker_context.pipeline.answer(call, plan), nbytes)


def _discard_reply(reply: Reply) -> None:
    """Nothing is sent."""
