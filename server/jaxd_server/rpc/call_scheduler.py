"""Schedules the calls of one connection: which thread runs each of them, and when.

The reading thread, when that takes no time; the call queue of its session, when it works on
values; else one of the threads for calls that run, or a thread of its own while it is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from jaxd_protocol.errors import Busy, JaxdError, LimitExceeded, ProtocolError
from jaxd_protocol.messages.calls import (
    FAILED,
    FIRST,
    FROM_CALLBACK,
    LOST_AGAIN,
    LOST_ONCE,
    MAY_REPEAT,
    ON_ONE_DEVICE,
    ON_VALUES,
    SILENT,
    STRICT,
    TIMED,
    WARM,
)
from jaxd_protocol.messages.data_locations import ResultPolicy, decompressed_bytes
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire import Frame, Value
from jaxd_protocol.wire.frames import too_large
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Plan
from jaxd_server.execution.call import Call, Finish, Reply
from jaxd_server.rpc.callback_route import CallbackRoute
from jaxd_server.rpc.client_proxy import ClientProxy
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.inflight_calls import InflightCall, InflightCalls, discard_reply
from jaxd_server.rpc.send_queue import SendQueue
from jaxd_server.rpc.sessions import Session, SessionState
from jaxd_server.rpc.worker_context import WorkerContext
from jaxd_server.runtime.call_trace import ConnectionTrace
from jaxd_server.runtime.threads.cancellation import CallPhase

_RESULT_ONLY: Final = MAY_REPEAT | ON_VALUES | FROM_CALLBACK | TIMED | FIRST | ON_ONE_DEVICE
"""Flags of calls that want a result and nothing else: what was warm before answers them."""

_OF_PACE: Final = ~(ON_VALUES | TIMED | FIRST | ON_ONE_DEVICE)
"""Flags that matter to whether a call is quick."""


def _tell_nothing(kind: str, content: Any) -> None:
    """In the place of `ClientProxy.emit`."""


class CallScheduler:
    """The calls of one connection. For its reading thread.

    Args:
        worker_context: what it shares with the others.
        session: whose connection it is.
        share: the flow control of the connection.
        session_state: its values and blocks.
        send_queue: takes replies.
        client: answers questions about calls, and takes their events.

    Attributes:
        inflight: the calls that other threads answer.
        trace: records the calls; None: nobody looks.
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
        self.trace: ConnectionTrace | None = None
        self.inflight = InflightCalls(worker_context.policy, send_queue, share)

    def close(self) -> None:
        """The client is gone: what has not begun is dropped; it may come back for the rest."""
        self._session.unanswered.add(self.inflight.close(), time.monotonic())

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
            plan, warm = self._planned(key, skeleton, flags)
            is_quick = flags & _OF_PACE <= MAY_REPEAT and warm is not None and warm.runs_quickly
            make = Call if is_quick else InflightCall  # a quick one is not worth being cancelled
            emit = _tell_nothing if flags & SILENT else partial(client.emit, seq)
            call = make(key, skeleton, blob, frame.buffers, client, seq, emit)
            if self.trace is not None:
                call.trace = self.trace.call(seq)
                call.emit = call.trace.emitting(call.emit)
            call.nbytes = nbytes
            call.deadline = None if timeout_s is None else time.monotonic() + timeout_s
            call.strict, call.warm_only = bool(flags & STRICT), bool(flags & WARM)
            call.is_first = bool(flags & FIRST)
            call.on_one_device = bool(flags & ON_ONE_DEVICE)
            call.call_back = partial(client.call_back, seq)
            # the word of a client alone would have a call admitted where others wait
            call.inside = bool(flags & FROM_CALLBACK and self._may_call_back())
            call.lost = 2 if flags & LOST_AGAIN else flags & LOST_ONCE and 1
            session.has_called = True
            call.session, call.timed_from = session, 0.0 if flags & TIMED else -1.0
            call.referenced_data = self._session_state.referenced_data
            call.stay = ResultPolicy.from_bytes(stay) if stay else None
            if drops:
                self._session_state.drop(drops)
            call.elsewhere, call.inflated = elsewhere, inflated
            if elsewhere and flags & ON_VALUES:
                return self._enqueue_ordered(call, plan, warm)
            if not isinstance(call, InflightCall):
                return partial(self._answer, call, plan)
            self._submit(call, plan, is_warm=warm is not None)
        except BaseException:
            self._share.end_call(nbytes)
            raise
        return None

    def _may_call_back(self) -> bool:
        """Whether a call of the client calls back now, or did when its last worker ended.

        Such a call is repeated, and its client may be quicker than it to ask what the callback
        asks, which would wait behind it.
        """
        session = self._session
        if self._client.called_back or session.asking:
            return True
        return any(call.lost for call in list(session.ordered_calls.values()))

    def _planned(
        self, key: bytes, skeleton: bytes, flags: int
    ) -> tuple[Plan | None, Executable | None]:
        """How a call is made that is known, and what runs it if there is nothing to wait for."""
        pipeline = self._worker_context.pipeline
        plan = pipeline.executables.plan(key, skeleton, self._session.device)
        known = None if plan is None else plan.executable
        if flags & FIRST and known is not None and (known.output or known.program.host_state):
            return None, None  # it has events to send, as one that is built, or is refused
        if flags & ON_ONE_DEVICE and known is not None and len(known.program.devices) > 1:
            return None, None  # it is refused
        warm = None if pipeline.admission.is_barred else known
        return None if flags & ~_RESULT_ONLY else plan, warm

    def _reserve(self, nbytes: int) -> int | JaxdError:
        """Reserves so many bytes as if they had been sent; returns them, or the error why not.

        The call raises that error when its turn comes: those on values are in order.
        """
        if not nbytes:
            return 0
        try:
            limit = self._worker_context.options.max_frame_bytes
            if nbytes > limit:
                raise LimitExceeded(too_large(nbytes, limit))
            self._share.admit_strictly(nbytes)
        except JaxdError as error:
            return error
        return nbytes

    def _enqueue_ordered(
        self, call: Call, plan: Plan | None, warm: Executable | None
    ) -> Callable[[], object] | None:
        """A call on values: in order with the others of its session, and never twice.

        Returns:
            As `schedule`.
        """
        if call.stay is None:
            raise ProtocolError("a call on values does not say what is to stay.")
        start: Callable[[], Finish] = partial(self._worker_context.pipeline.start, call, plan)
        is_short = warm is not None and warm.starts_quickly
        session, number = self._session, call.stay.number
        if not isinstance(call, InflightCall):
            here = session.call_queue.is_idle
            _, go_on = self._session_state.enqueue(
                call.stay, start, partial(self._send, call), here=here, is_short=is_short
            )
            return go_on if here or is_short else go_on()
        phase: CallPhase = "waiting" if plan is None or plan.executable is None else "running"
        with self.inflight.opened(call):
            call.is_ordered = True
            call.route = CallbackRoute(self._client, call.number, session.asking)
            call.call_back = call.route.call_back
            call.cancel_token.notify(call.route.give_up)
            call.reply_when_cancelled = partial(session.reply_cache.answer, number)
            begin = partial(call.start_ordered, phase, start)
            is_new, go_on = self._session_state.enqueue(
                call.stay,
                begin,
                call.answer_ordered,
                here=False,
                is_short=is_short,
                is_nested=call.inside,
            )
            if is_new:
                session.ordered_calls[number] = call
            else:  # the first one decides what happens to values
                call.reply_when_cancelled = discard_reply
                first = session.ordered_calls.get(number)
                if first is not None:
                    call.join(first)
            return go_on if is_short else go_on()

    def _submit(self, call: InflightCall, plan: Plan | None, *, is_warm: bool) -> None:
        """Has another thread answer a call, unless too many wait for one already."""
        context, principal = self._worker_context, self._session.principal
        try:
            context.backlog.acquire(principal)
        except Busy as error:
            return self._refuse(call, error)
        work = partial(context.pipeline.answer, call, plan)
        try:
            with self.inflight.opened(call, partial(context.backlog.release, principal)):
                if not is_warm:  # it may wait, and keep its thread
                    context.builders.submit(call.run, "waiting", work)
                    return None
                job = partial(call.run, "running", work)
                call.withdraw = partial(context.runners.withdraw, self._session.id, job)
                context.runners.submit(self._session.id, job)
        except Busy as error:  # there is no thread
            self._refuse(call, error)
        return None

    def _refuse(self, call: Call, error: Busy) -> None:
        refused = (FAILED, encode_failure(error))
        reply = refused if call.stay is None else (*refused, b"")
        self._send_queue.later(call.number, (reply, ()), call.nbytes)

    def _answer(self, call: Call, plan: Plan | None) -> None:
        self._send(call, self._worker_context.pipeline.answer(call, plan))

    def _send(self, call: Call, reply: Reply) -> None:
        if call.trace is not None:
            call.end_trace()
        self._send_queue.now(call.number, reply, call.nbytes)
