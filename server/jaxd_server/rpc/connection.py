"""One client's connection: reads messages, schedules calls, answers other requests.

The thread that reads a warm call runs it itself: handing it to another thread would cost more than
everything else together. No thread reads meanwhile. When a call takes longer than it used to, the
watchdog starts another reading thread, and the first one ends when its call is done. When nothing
comes for a while and nothing is under way, the reading thread leaves the connection to the
`IdleConnections`, and ends; the next message has another one read on.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from rpyc.core.service import VoidService

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import Busy, JaxdError, ProtocolError, RemoteError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.report import kept_report
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream, Frame, Value
from jaxd_protocol.wire.stream import AdaptiveWait
from jaxd_server.execution.call import Reply
from jaxd_server.rpc.call_scheduler import CallScheduler
from jaxd_server.rpc.client_proxy import ClientProxy
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.send_queue import SendQueue
from jaxd_server.rpc.services import (
    CHECKPOINT_VERBS,
    SERVICE_VERBS,
    VALUE_VERBS,
    check_arguments,
)
from jaxd_server.rpc.services.programs import PROGRAM_VERBS, ProgramService
from jaxd_server.rpc.services.values import ValueService
from jaxd_server.rpc.sessions import Session, SessionState
from jaxd_server.rpc.worker_context import SILENCE_S, STALL_S, WorkerContext
from jaxd_server.runtime.call_trace import ConnectionTrace, clock
from jaxd_server.runtime.logs import log_event

_OF_DEVICES: Final = frozenset({"put", "take", "restore", "fetch", "part", "hold", "held"})
"""What needs arrays on this server."""

_LEAVE_VALUES: Final = frozenset({"put", "take", "held"})
_MAX_NAME: Final = 64
_MAX_REPORTED: Final = 1 << 40
_MAX_REPORT: Final = 8192
_OF_FALLBACKS: Final = ("fallback_calls", "fallback_functions")
_OF_VERIFICATION: Final = ("verified_programs", "stale_programs", "incomparable_programs")


class ReaderHandoff:
    """The right to read one connection: one thread has it, or none while the connection is idle.

    Whoever has it ends the connection as well. A thread that has lost it, and fails, interrupts the
    one in charge, or wakes the idle connection.

    Args:
        read_one: reads and handles one message; raises EOFError at the end.
        interrupt: brings that end about, for the thread that reads now or next.
        on_end: called once, when the connection ended, with the first error.
    """

    def __init__(
        self,
        read_one: Callable[[], None],
        interrupt: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        self._read_one = read_one
        self._interrupt = interrupt
        self._on_end = on_end
        self._lock = threading.Lock()  # guards _turn, _error and busy_since
        self._turn = 0
        self._error: BaseException | None = None
        self.busy_since: float | None = None

    def run(self) -> None:
        """Reads until the connection ends, or this thread is not in charge any more."""
        turn = self._turn
        try:
            while turn == self._turn:
                self._read_one()
        except BaseException as error:  # noqa: BLE001  handed to on_end
            with self._lock:
                first = self._error = self._error or error
                is_in_charge = turn == self._turn
                if is_in_charge:
                    self.busy_since = None  # no other is put in charge
            if is_in_charge:
                self._on_end(first)
            else:
                self._interrupt()

    def leave(self) -> None:
        """The thread in charge is so no more; the next one to call `run` is."""
        with self._lock:
            self._turn += 1

    def begin_inline(self) -> int:
        """The reading thread is about to run a call itself; returns what `end_inline` needs."""
        turn = self._turn  # first: once we are busy, another thread may be put in charge
        self.busy_since = time.monotonic()
        return turn

    def end_inline(self, turn: int) -> bool:
        """It is done with that, perhaps long after another thread was put in charge.

        Returns:
            Whether this one still is.
        """
        with self._lock:
            is_in_charge = turn == self._turn
            if is_in_charge:
                self.busy_since = None
            return is_in_charge

    def replace_if_stuck(self, now: float) -> None:
        """Puts a new thread in charge when the present one has been running a call for too long."""
        with self._lock:
            if self.busy_since is None or now - self.busy_since < STALL_S:
                return
            since, self.busy_since = self.busy_since, None
            self._turn += 1
            try:
                start_daemon("jaxd-client", self.run)
            except RuntimeError:  # the system has no more threads: the present one reads on later
                self._turn -= 1
                self.busy_since = since


class ServerConnection(BulkConnection):
    """The server's end. Its calls may run in many threads; one thread at a time reads."""

    def __init__(self, stream: BulkStream, worker_context: WorkerContext, session: Session) -> None:
        self._worker_context = worker_context
        self._session = session
        options = worker_context.options
        self._share = ConnectionShare(worker_context.budget, options.slots, session.principal)
        channel = BulkChannel(stream, options.max_frame_bytes, self._share.admit)
        super().__init__(VoidService(), channel, {})
        self._send_queue = SendQueue(self, channel, self._share, options.max_result_bytes)
        self._client = ClientProxy(self, self._share, self._send_queue)
        self._session_state = SessionState(
            session, worker_context.values, worker_context.max_shared_bytes
        )
        self._values = ValueService(
            self._session_state.referenced_data,
            worker_context.pipeline.oom_handler,
            options.max_result_bytes,
            session.device,
            worker_context.peers,
        )
        self._calls = CallScheduler(
            worker_context,
            session,
            self._share,
            self._session_state,
            self._send_queue,
            self._client,
        )
        self._notices: dict[str, Callable[..., None]] = {
            "cancel": self._calls.inflight.cancel,
            "drop": self._session_state.drop,
            "unshare": self._session_state.forget_blocks,
            "unhold": self._session_state.forget_snapshots,
            "bye": self._session_state.end_session,
            "kept": self._note_kept,
            "fell_back": partial(self._count_reported, _OF_FALLBACKS),
            "verified": partial(self._count_reported, _OF_VERIFICATION),
        }
        state, report = self._session_state, worker_context.report
        self._answers: dict[str, Callable[..., Value]] = {
            "share": lambda frame, *args: state.share_block(frame.descriptors, *args),
            "adopt": lambda _, *args: state.referenced_data.adopt(*args),
            "withdraw": lambda _, number: self._calls.inflight.withdraw(number),
            "statistics": lambda *_: json.dumps(report("statistics", session.principal)),
            "info": lambda *_: json.dumps(report("info", session.principal)),
            "use": lambda *_: json.dumps(session.use.to_report()),
            "devices": lambda *_: json.dumps(worker_context.devices(session)),
            "trace": lambda _, *args: self._begin_trace(*args),
        }
        self._trace: ConnectionTrace | None = None
        self._end = ExitStack()
        self._patience = AdaptiveWait(stream.readiness())
        self._reader_handoff = ReaderHandoff(self._read_one, stream.shutdown, self._on_end)
        stream.report_silence(SILENCE_S)

    def serve(self, end: ExitStack) -> None:
        """Reads and answers, and returns when the calling thread has no further part in it.

        Args:
            end: closed when the connection has ended, in whichever thread that is.
        """
        self._end = end
        self._worker_context.traffic.add(self._channel, self._session.principal)
        self._read_on()

    def _read_on(self) -> None:
        self._worker_context.watchdog.watch(self._reader_handoff)
        self._reader_handoff.run()

    def _leave_if_idle(self) -> None:
        """The client is silent; unless something is under way, that needs no thread."""
        if self._share.has_calls or self._send_queue.is_working or self._channel.poll(0):
            return
        self._worker_context.watchdog.unwatch(self._reader_handoff)
        self._reader_handoff.leave()  # first: another thread may read as soon as it is added
        self._worker_context.idle_connections.add(self._channel.stream.sock, self._read_on)

    def _read_one(self) -> None:
        if self._channel.writer.held and not self._channel.reader.has_message():
            self._send_queue.send_held()
        if self._trace is not None:
            self._trace.wait_for_input(self._channel)
        try:
            frame = self._channel.recv()
        except TimeoutError:
            return self._leave_if_idle()
        message = self.read_message(frame)
        if message is None:
            return None
        verb, seq, value = message
        if verb is not None:
            return self._on_request(seq, verb, value, frame)
        self._share.release_message()
        return self._client.questions.answer(seq, value, isinstance(value, RemoteError), frame)

    def _on_end(self, error: BaseException) -> None:
        known = isinstance(error, JaxdError)  # some of which are OSErrors as well
        if known or not isinstance(error, EOFError | OSError):
            text = str(error) if known else "".join(traceback.format_exception(error))
            log_event("connection_dropped", reason=text)
        with self._end:
            self.shut()
            self._worker_context.watchdog.unwatch(self._reader_handoff)
            self._worker_context.traffic.remove(self._channel)
            self._calls.close()
            self._share.close()
            self._client.questions.close()
            self._session_state.close()
            self._send_queue.close()

    def _on_request(self, seq: int, verb: str, args: tuple[Value, ...], frame: Frame) -> None:
        """Starts a call, or answers another request."""
        if verb == "call":
            job = self._calls.schedule(seq, args, frame)
            return None if job is None else self._run_inline(job)
        if verb in SERVICE_VERBS:
            return self._submit(seq, verb, args, frame.buffers)
        self._share.release_message()
        if verb in self._notices:
            self._notices[verb](*args)
            return None
        if verb not in self._answers:
            raise ProtocolError(f"the client asked for {verb!r}, which this server does not know.")
        return self.send_reply(seq, self._answers[verb](frame, *args))

    def _begin_trace(self, *args: Value) -> str:
        """Records what follows on this connection, in a trace of its principal.

        Args:
            args: the name of the trace, empty where nothing is to be recorded from now on; and a
                label for the connection.

        Returns:
            What the clock says; see `clock`.

        Raises:
            ProtocolError: when these are no names.
        """
        if tuple(map(type, args)) != (bytes, str) or max(map(len, args)) > _MAX_NAME:
            raise ProtocolError("the client asks for a trace without saying for which.")
        name, label = args
        log = self._worker_context.traces.open(self._session.principal, name) if name else None
        trace = None if log is None else ConnectionTrace(log, label)
        self._trace = self._calls.trace = self._send_queue.trace = trace
        return json.dumps(clock())

    def _note_kept(self, text: Value) -> None:
        """Keeps what the client says that it has of its arrays, to show it.

        Raises:
            ProtocolError: when it is no such report.
        """
        try:
            if type(text) is not str or len(text) > _MAX_REPORT:
                raise ValueError(type(text))  # noqa: TRY301  as what is no report
            self._session.values.kept = {
                **kept_report(json.loads(text)),
                "process": self._session.process,
                "at": time.time(),
            }
        except (RecursionError, TypeError, ValueError) as error:
            raise ProtocolError("the client reports something that it cannot keep.") from error

    def _count_reported(self, names: tuple[str, ...], *counts: Value) -> None:
        """Counts what happened in the client's process, as far as a client can be believed.

        Raises:
            ProtocolError: when these are no counts.
        """
        are_counts = all(type(n) is int and 0 <= n <= _MAX_REPORTED for n in counts)
        if not are_counts or len(counts) != len(names):
            raise ProtocolError("the client reports numbers of calls that no process makes.")
        counters = self._worker_context.pipeline.counters
        counters.add(self._session.counts, **dict(zip(names, counts, strict=True)))

    def _submit(
        self, seq: int, verb: str, args: tuple[Value, ...], buffers: Sequence[memoryview]
    ) -> None:
        """Has a service answer in a thread; counts as a call, so that a drain waits for it."""
        nbytes = self._share.begin()
        try:
            self._worker_context.builders.submit(
                self._serve_and_reply, seq, verb, args, buffers, nbytes
            )
        except Busy as error:  # there is no thread
            self._send_queue.later(seq, ((FAILED, encode_failure(error)), ()), nbytes)
        except BaseException:
            self._share.end_call(nbytes)
            raise

    def _serve_and_reply(
        self,
        seq: int,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview],
        nbytes: int,
    ) -> None:
        trace, started_ns = self._trace, time.monotonic_ns()
        try:
            reply = self._serve(verb, args, buffers)
        except BaseException as error:  # noqa: BLE001  sent to the client, as that of a call
            phase = "building" if verb == "stages" else ""
            reply = (FAILED, encode_failure(error, phase=phase)), ()
        if trace is not None and verb != "traced":
            trace.add(seq, verb, started_ns)
        self._send_queue.later(seq, reply, nbytes)

    def _serve(self, verb: str, args: tuple[Value, ...], buffers: Sequence[memoryview]) -> Reply:
        check_arguments(verb, args)
        worker_context, session = self._worker_context, self._session
        if verb in _OF_DEVICES:
            worker_context.pipeline.require_device()
        if verb in VALUE_VERBS:
            admission = worker_context.pipeline.admission
            with admission.shared(f"({verb})", leaves_values=verb in _LEAVE_VALUES):
                return self._values.answer(verb, args, buffers)
        if verb == "traced":
            return json.dumps(worker_context.traces.take(session.principal, *args)), ()
        if verb in CHECKPOINT_VERBS:
            return self._answer_checkpoint(verb, args)
        if verb == "stages":
            return worker_context.stages.answer(
                self._client, args, buffers, session.principal, session.counts
            )
        if verb in PROGRAM_VERBS:
            pipeline, options = worker_context.pipeline, worker_context.options
            return ProgramService(pipeline, options, session, self._client).answer(
                verb, args, buffers
            )
        return worker_context.operations.answer(verb, args, session.principal)

    def _answer_checkpoint(self, verb: str, args: tuple[Value, ...]) -> Reply:
        from jaxd_server.rpc.services import checkpoints  # few sessions have any

        session, context = self._session, self._worker_context
        checkpoints.check_permitted(context.options, session.principal)
        admission = context.pipeline.admission
        service = checkpoints.CheckpointService(
            self._session_state.referenced_data, session.saves, admission, session.device
        )
        with admission.shared(f"({verb})", leaves_values=verb == "restore"):
            return service.answer(verb, args)

    def _run_inline(self, run: Callable[[], object]) -> None:
        """In the reading thread, which is the connection's own: it may wait for the client."""
        turn = self._reader_handoff.begin_inline()
        watchdog = self._worker_context.watchdog
        if watchdog.is_idle:
            watchdog.wake()
        self._send_queue.begin_inline()
        run()
        if not self._reader_handoff.end_inline(turn):
            self._send_queue.send_held()  # the thread in charge may be waiting for input
        elif not self._channel.reader.has_input():
            self._patience.wait()
