"""One client's connection: reads its messages, runs or hands on its calls, asks it things."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from jaxd_protocol.calls import (
    FAILED,
    INSIDE,
    LOST_AGAIN,
    LOST_ONCE,
    MAY_REPEAT,
    ON_VALUES,
    STRICT,
    WARM,
)
from jaxd_protocol.elsewhere import Stay
from jaxd_protocol.errors import (
    Busy,
    InternalError,
    JaxdError,
    LimitExceeded,
    ProtocolError,
)
from jaxd_protocol.failures import describe_failure
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream, Frame, Value
from jaxd_protocol.wire.patience import Patience
from jaxd_server.asking import Asking
from jaxd_server.belongings import Belongings
from jaxd_server.budget import Share
from jaxd_server.call import Call
from jaxd_server.executable import Executable
from jaxd_server.in_order import InOrder
from jaxd_server.interest import Phase
from jaxd_server.logs import log_event
from jaxd_server.open_calls import OpenCall, OpenCalls, in_lane, in_phase
from jaxd_server.operations import INQUIRIES, OPERATIONS
from jaxd_server.plan import Plan
from jaxd_server.questions import Questions
from jaxd_server.readership import Readership
from jaxd_server.replies import Finish, Reply
from jaxd_server.sessions import Session
from jaxd_server.value_desk import VALUE_VERBS, ValueDesk
from jaxd_server.workshop import Workshop

__all__ = ["ServerConnection"]

MAX_WAITING_EVENTS: Final = 64
"""Messages to one client that wait to be sent; beyond that its events are dropped."""

_MAX_WAITING_WORDS: Final = 256
"""What calls have said and is not sent yet; beyond that they wait before they say more."""

_PATIENCE_S: Final = 30.0
"""How long a call waits for a client that does not read, before what it says is dropped."""


class ServerConnection(BulkConnection):
    """The server's end. Its calls may run in many threads; one thread at a time reads."""

    def __init__(
        self, root: object, stream: BulkStream, workshop: Workshop, session: Session
    ) -> None:
        self._workshop = workshop
        self._session = session
        self._share = Share(workshop.budget, workshop.slots, session.principal)
        channel = BulkChannel(stream, workshop.max_frame_bytes, self._share.admit)
        super().__init__(root, channel, {})
        self.owner = os.urandom(16)
        self._questions = Questions()
        self._outbox = InOrder()
        self._room_for_words = threading.BoundedSemaphore(_MAX_WAITING_WORDS)
        self._own = Belongings(session, workshop.values, workshop.max_shared_bytes)
        self._desk = ValueDesk(
            self._own.holdings,
            workshop.pipeline.shortage,
            workshop.max_result_bytes,
            session.device,
        )
        self._calls = OpenCalls(workshop.terms, self._send_later, self._send_now, self._share.free)
        self._told: dict[str, Callable[..., None]] = {
            "cancel": self._calls.cancel,
            "drop": self._own.drop,
            "unshare": self._own.forget_blocks,
            "bye": self._own.end_session,
        }
        self._ended = threading.Event()
        self._patience = Patience(stream.readiness())
        self._readership = Readership(self._read_one, self._on_end)

    def serve(self) -> None:
        """Reads and answers until the connection ends; the calling thread is the first reader."""
        self._workshop.sentry.watch(self._readership)
        self._workshop.traffic.add(self._channel)
        try:
            self._readership.run()
            self._ended.wait()  # another thread may have taken over the reading
        finally:
            self._workshop.sentry.unwatch(self._readership)
            self._workshop.traffic.remove(self._channel)

    def _read_one(self) -> None:
        self.dispatch(self._channel.recv())

    def _on_end(self, error: Exception) -> None:
        known = isinstance(error, JaxdError)  # some of which are OSErrors as well
        if known or not isinstance(error, EOFError | OSError):
            text = str(error) if known else "".join(traceback.format_exception(error))
            log_event("connection_dropped", level=logging.WARNING, reason=text)
        self.shut()
        self._calls.close()
        self._share.close()
        self._questions.close()
        self._own.close()
        self._ended.set()

    # what the client asks ---------------------------------------------------------------------

    def on_request(self, seq: int, verb: str, args: tuple[Value, ...], frame: Frame) -> None:
        """Starts a call, or answers a question about the server at once."""
        if verb == "call":
            return self._on_call(seq, args, frame)
        who = self._session.principal
        if verb in OPERATIONS or verb in INQUIRIES:
            return self._on_operation(
                seq, partial(self._workshop.operations.answer, verb, args, who)
            )
        if verb == "stages":
            source = Asking(self, seq)
            show = self._workshop.stages.answer
            return self._on_operation(seq, partial(show, source, args, frame.buffers))
        if verb in VALUE_VERBS:
            return self._on_operation(seq, partial(self._on_values, verb, args, frame.buffers))
        self._share.settle()
        if verb in self._told:
            self._told[verb](*args)
            return None
        if verb == "share":
            return self.send_reply(seq, self._own.share_block(frame.descriptors, *args))
        if verb == "adopt":
            return self.send_reply(seq, self._own.holdings.adopt(*args))
        if verb in ("statistics", "info"):
            return self.send_reply(seq, json.dumps(self._workshop.report(verb, who)))
        if verb == "devices":
            return self.send_reply(seq, json.dumps(self._workshop.devices(self._session)))
        raise ProtocolError(f"the client asked for {verb!r}, which this server does not know.")

    def _on_operation(self, seq: int, work: Callable[[], Reply]) -> None:
        """Counts as a call, so that the server does not end before its reply is sent."""
        nbytes = self._share.begin()
        try:
            self._workshop.builders.submit(self._answer_elsewhere, seq, work, nbytes)
        except BaseException:
            self._share.end(nbytes)
            raise

    def _on_values(
        self, verb: str, args: tuple[Value, ...], buffers: Sequence[memoryview]
    ) -> Reply:
        """Counts as a call: a worker does not give way to the next one while arrays arrive."""
        admission = self._workshop.pipeline.admission
        running = admission.enter_always(f"({verb})")
        try:
            return self._desk.answer(verb, args, buffers)
        finally:
            admission.leave(running)

    def _on_call(self, seq: int, args: tuple[Value, ...], frame: Frame) -> None:
        try:
            key, skeleton, blob, timeout_s, flags, stay, elsewhere, drops = args
        except ValueError as error:
            raise ProtocolError("a call does not have the eight values that it should.") from error
        nbytes = self._share.begin()
        try:
            skeleton = self._own.skeleton(skeleton)
            source = Asking(self, seq)
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            repeatable = bool(flags & MAY_REPEAT)
            call = Call(
                key, skeleton, blob, frame.buffers, source, deadline, repeatable, seq, source.emit
            )
            call.strict = bool(flags & STRICT)
            call.warm_only = bool(flags & WARM)
            call.call_back = source.call_back
            call.inside = bool(flags & INSIDE)
            call.lost = 2 if flags & LOST_AGAIN else flags & LOST_ONCE and 1
            call.session = self._session
            call.holdings = self._own.holdings
            if stay:
                call.stay = Stay.from_bytes(stay)
            self._own.drop(drops)
            plan = self._workshop.pipeline.plan(key, skeleton, self._session.device)
            warm = self._warm(plan)
            is_quick = flags & ~ON_VALUES <= MAY_REPEAT and warm is not None and warm.runs_quickly
            if elsewhere:
                call.elsewhere = elsewhere
                if flags & ON_VALUES:
                    return self._in_lane(call, plan, nbytes, is_quick)
            if not is_quick:
                self._taken_on(call, plan, nbytes)
        except BaseException:
            self._share.end(nbytes)
            raise
        if is_quick:
            self._here(partial(self._answer, call, plan, nbytes))
        return None

    def _in_lane(self, call: Call, plan: Plan | None, nbytes: int, is_quick: bool) -> None:
        """A call on values: in order with the others of its session, and never twice."""
        if call.stay is None:
            raise ProtocolError("a call on values does not say what is to stay.")
        start: Callable[[], Finish] = partial(self._workshop.pipeline.start, call, plan)

        def send(reply: Reply) -> None:
            self._send_now(call.number, reply, nbytes)

        warm = self._warm(plan)
        is_short = warm is not None and warm.starts_quickly
        if is_quick:  # also when it waits for others, it is not worth being able to give it up
            here = self._own.is_idle
            run = partial(self._own.run_in_order, call.stay, start, send, here=here)
            if here or is_short:
                return self._here(partial(run, is_short=is_short))
            run(is_short=False)
            return None
        phase: Phase = "waiting" if plan is None or plan.executable is None else "running"
        with self._calls.opened(call, nbytes) as one:
            one.is_in_order = True
            one.settle = partial(self._session.remembered.answer, call.stay.number)
            begin, stay = partial(in_lane, one, phase, start), call.stay

            def put() -> None:
                new = self._own.run_in_order(
                    stay, begin, one.answer_in_lane, here=False, is_short=is_short
                )
                if not new:
                    one.settle = _leave  # what it does to values is up to the first

            if is_short:
                self._here(put)
            else:
                put()
        return None

    def _warm(self, plan: Plan | None) -> Executable | None:
        """What runs a call, when there is nothing that it would have to wait for."""
        if plan is None or self._workshop.pipeline.admission.is_barred:
            return None
        return plan.executable

    def _taken_on(self, call: Call, plan: Plan | None, nbytes: int) -> None:
        """Has a call answered by another thread, unless too many wait for one already."""
        backlog, principal = self._workshop.backlog, self._session.principal
        try:
            backlog.enter(principal)
        except Busy as error:
            refused = (FAILED, describe_failure(error))
            reply = refused if call.stay is None else (*refused, b"")
            return self._send_later(call.number, (reply, ()), nbytes)
        over = partial(backlog.leave, principal)
        with self._calls.opened(call, nbytes, over) as one:
            return self._elsewhere(one, call, plan)

    def _elsewhere(self, one: OpenCall, call: Call, plan: Plan | None) -> None:
        """Has another thread answer a call: one of a few when it is warm, else one of its own."""
        work = partial(self._workshop.pipeline.answer, call, plan)
        if self._warm(plan) is None:  # who waits keeps a thread
            self._workshop.builders.submit(in_phase, one, "waiting", work)
            return
        runners, owner = self._workshop.runners, self._session.id
        job = partial(in_phase, one, "running", work)
        one.withdraw = partial(runners.withdraw, owner, job)
        runners.submit(owner, job)

    def _here(self, run: Callable[[], object]) -> None:
        """In the reading thread, which is the connection's own: it may wait for the client."""
        turn = self._readership.begin_inline()
        self._workshop.sentry.rouse()
        run()
        self._readership.end_inline(turn)
        if not self._channel.reader.has_input():
            self._patience.wait()

    def _answer(self, call: Call, plan: Plan | None, nbytes: int) -> None:
        self._send_now(call.number, self._workshop.pipeline.answer(call, plan), nbytes)

    def _answer_elsewhere(self, seq: int, work: Callable[[], Reply], nbytes: int) -> None:
        self._send_later(seq, work(), nbytes)

    def _send_now(self, seq: int, answer: Reply, nbytes: int) -> None:
        """From a thread that works for this client alone, so that it may wait for it."""
        if self._outbox.is_idle:
            self._send_answer(seq, answer, nbytes)
        else:  # behind what the call has said
            self._send_later(seq, answer, nbytes)

    def _send_later(self, seq: int, answer: Reply, nbytes: int) -> None:
        """From any thread, which does not wait for a client that does not read."""
        held = sum(map(len, answer[1]))
        self._share.hold(held)

        def send() -> None:
            try:
                self._send_answer(seq, answer, nbytes)
            finally:
                self._share.hold(-held)

        self._outbox.put(send)

    def _send_answer(self, seq: int, answer: Reply, nbytes: int) -> None:
        try:
            value, buffers = answer
            size = sum(map(len, buffers))
            if size > self._workshop.max_result_bytes:
                value, buffers = self._over_limit(size), ()
            self.send_reply(seq, value, buffers)
        except EOFError:
            return  # the client is gone; its reader sees that too
        except Exception as error:  # noqa: BLE001  whatever it is, the client must not wait for ever
            self._apologise(seq, error)
        finally:
            self._share.end(nbytes)

    def _apologise(self, seq: int, error: Exception) -> None:
        """Sends an error where the reply could not be sent."""
        if not isinstance(error, LimitExceeded):
            log_event("reply_failed", level=logging.ERROR)
            error = InternalError(
                f"the server could not send the result: {error!r}. Its log has the traceback; "
                "please report it."
            )
        with suppress(EOFError):
            self.send_reply(seq, (FAILED, describe_failure(error)))

    def _over_limit(self, size: int) -> tuple[int, tuple[Any, ...]]:
        error = LimitExceeded(
            f"the result has {size:,} bytes; this server sends at most "
            f"{self._workshop.max_result_bytes:,}. Return less, or start the server with a larger "
            "--max-result-bytes."
        )
        return FAILED, describe_failure(error)

    # what the server asks ---------------------------------------------------------------------

    def ask(self, verb: str, *args: Value) -> tuple[Value, Frame]:
        """The client's answer to `verb`; see `Questions.ask`."""
        seq = next(self.numbers)
        return self._questions.ask(seq, lambda: self.send_request(seq, verb, args))

    def ask_patiently(
        self, verb: str, args: tuple[Value, ...], buffers: Sequence[memoryview]
    ) -> tuple[Value, Frame]:
        """As `ask`, with buffers, of what takes the client as long as it likes."""
        seq = next(self.numbers)

        def send() -> None:  # behind what the call has said
            try:
                self.send_request(seq, verb, args, buffers)
            except EOFError:
                return  # then the question fails as well
            except JaxdError as error:
                self._questions.answer(seq, str(error), True, Frame())

        return self._questions.ask(seq, lambda: self._outbox.put(send), patiently=True)

    @contextmanager
    def parked(self) -> Iterator[None]:
        """A call waits: its client's messages are read on, whatever the budget says."""
        self._share.park()
        try:
            yield
        finally:
            self._share.unpark()

    def tell(self, verb: str, *args: Value) -> None:
        """Sends the client a message that it does not answer, without waiting for it to go out.

        Dropped when the client is gone, or too much waits for it already.
        """
        if len(self._outbox) < MAX_WAITING_EVENTS:
            self._outbox.put(partial(self._send_message, verb, args))

    def say(self, verb: str, *args: Value) -> None:
        """Sends a message that is not answered, behind those before it and before any reply.

        Waits while the client has too many before it. Dropped when the client is gone, or does
        not read.
        """
        if self._ended.is_set() or not self._room_for_words.acquire(timeout=_PATIENCE_S):
            return

        def send() -> None:
            self._send_message(verb, args)
            self._room_for_words.release()

        self._outbox.put(send)

    def _send_message(self, verb: str, args: tuple[Value, ...]) -> None:
        with suppress(EOFError):
            self.send_request(next(self.numbers), verb, args)

    def on_reply(self, seq: int, value: Value, failed: bool, frame: Frame) -> None:
        """The client answered one of our questions."""
        self._share.settle()
        self._questions.answer(seq, value, failed, frame)


def _leave(reply: Reply) -> None:
    """Nothing is sent."""
