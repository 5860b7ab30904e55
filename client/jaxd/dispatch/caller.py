"""Makes the calls of persistent functions on one server."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.connection.settings import REPLY_GRACE_S, Settings
from jaxd.dispatch.session import MAX_WORKERS, Session
from jaxd.interop.jax_runtime import runs_here
from jaxd.request.arguments import encode_arguments
from jaxd.request.call_request import (
    CallRequest,
    callback_origin,
    result_policy_for,
    running_callbacks,
)
from jaxd.request.function_snapshot import ELSEWHERE
from jaxd.results.reader import (
    NOTHING_STAYS,
    InlineLeaves,
    ResultsAs,
    check_reply,
    run_seconds,
    unreadable_reply_error,
)
from jaxd_protocol.errors import (
    Busy,
    CallbackError,
    CalledBack,
    ConfigurationError,
    ConnectionLost,
    ProtocolError,
    ResultError,
    ServerDraining,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, FailureOrigin, is_failure, set_origin
from jaxd_protocol.messages.data_locations import (
    KEEP_ALL,
    KEEP_NONE,
    ResultPolicy,
    new_call_number,
    value_ids_of,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.server_requests import RequestSource
    from jaxd.connection.shared_reader import PendingReply
    from jaxd.dispatch.retry import BusyBackoff, RetryLimits
    from jaxd.events.effects import CallEffects
    from jaxd.events.jax_callbacks import CallbackOrigin
    from jaxd.interop.handle_ranges import HandleRange
    from jaxd.remote_values.store import OpenSession
    from jaxd.request.function_snapshot import FunctionSpec, SnapshotCache
    from jaxd.transfer.dedup import DedupPlan
    from jaxd.transfer.routing import CallTransfer
    from jaxd_protocol.jit.options import Config
    from jaxd_protocol.messages.failures import Failure
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.wire import Frame


class Caller:
    """Makes calls on one server for persistent functions. Thread-safe; connects at first use.

    Args:
        settings: address of the server, and credentials.
        other: the caller whose session it uses, where there is one already.

    Attributes:
        settings: of its calls.
        session: with the server.
        runs_here: whether calls may run in this process, see `jaxd.tracing.here`.
    """

    runs_here = False

    def __init__(self, settings: Settings, other: Caller | None = None) -> None:
        self._specs: weakref.WeakValueDictionary[bytes, FunctionSpec] = (
            weakref.WeakValueDictionary() if other is None else other._specs  # noqa: SLF001  of a caller
        )
        self.settings = settings
        self.session: Session = self._new_session() if other is None else other.session

    def _new_session(self) -> Session:
        return Session(self.settings, self)

    def encode(
        self,
        spec: FunctionSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_s: float | None,
        results: ResultsAs,
        strict: bool = False,
        fallback: str | None = "error",
    ) -> CallRequest:
        """A call, ready to be sent.

        Raises:
            ArgumentError, TracerError, PackingError: when an argument cannot travel.
        """
        self.register(spec)
        classes: dict[tuple[str, str], type] = {}
        with spec.snapshot.pickling_context():
            encoded = encode_arguments(args, kwargs, spec.statics, classes, self.session.store)
        if classes:
            spec.snapshot.learn_objects(classes)
        if encoded.skeleton not in spec.snapshot.admitted:
            spec.snapshot.admit(encoded.skeleton)
        stay = result_policy_for(results, on_values=bool(encoded.values))
        return CallRequest(
            spec,
            encoded.skeleton,
            encoded.blob,
            encoded.buffers,
            timeout_s,
            results,
            strict,
            encoded.values,
            encoded.buffer_leaves,
            stay,
            encoded.sources,
            encoded.leaf_headers,
            (args, kwargs) if spec.snapshot.takes_arguments else None,
            fallback=fallback,
            origin=callback_origin() if running_callbacks else None,
            is_timed=stay is not None and self.settings.snapshot_s > 0.0,
        )

    @property
    def breadth(self) -> int:
        """On how many servers its calls may run."""
        return 1

    def requires_export(self, timeout_s: float | None = None) -> bool:
        """Whether functions have to be traced and exported here; connects to find out.

        Args:
            timeout_s: how long its caller waits for a server that has no room.

        Raises:
            NoServer, Busy: when the server cannot be reached.
        """
        session = self.session
        if session.accepts is None:
            session.current(deadline=None if timeout_s is None else time.monotonic() + timeout_s)
        return session.accepts == "exported"

    def register(self, spec: FunctionSpec) -> None:
        """Keeps what a key stands for as long as the function lives: the server may ask."""
        if self._specs.get(spec.key) is not spec:  # another one under this key may be about to go
            self._specs[spec.key] = spec

    def call(self, call: CallRequest) -> Any:
        """Makes the call and waits for its result.

        Raises:
            BaseException: what the function raised, in its own type where this process has it.
            JaxdError: when the call could not be made.
        """
        if call.values:
            return self.session.values().calls.call(call)
        open_call = OpenCall(self.session, call)
        return open_call.result(*open_call.wait())

    def run(
        self,
        snapshots: SnapshotCache,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call whose program is in this process, else `ELSEWHERE`."""
        return ELSEWHERE

    def takes_programs(self) -> bool:
        """Whether the server's programs may run in this process."""
        return False

    def warmed(self, call: CallRequest) -> None:
        """Called when the program of such calls is ready on the server."""

    def placed(self, call: CallRequest | None) -> str:
        """Where a call runs, and the rule that decided; None: any call of a function."""
        if self.settings.place == "server":
            return "server"
        return "server: programs are compared (verify), which those on the server are"

    def finish(self) -> None:
        """Called before its client closes: ends what it does in the background."""

    def route(
        self, spec: FunctionSpec, values: Sequence[HandleRange] = (), *, evenly: bool = False
    ) -> Caller:
        """What makes a call on one server: itself; of a pool see `jaxd.pool.caller`."""
        return self

    def everywhere(self, *, also_draining: bool = False) -> Sequence[Caller]:
        """What makes calls on each server, that for what has no key first."""
        return (self,)

    def on_member(self, name: str) -> Caller:
        """What makes calls on one member of a pool.

        Raises:
            ConfigurationError: when its server is no pool.
        """
        raise ConfigurationError(
            f"on(member={name!r}) is for a pool, and {self.session.settings.server or 'this one'} "
            "is a server. Leave it out, or use the address of a pool: pool://host:port#sha256=…"
        )

    def submitted(self, call: CallRequest, future: Future[Any]) -> Future[Any]:
        """The future of a call that was submitted, as its owner gets it."""
        return future

    def sends_ahead(self, call: CallRequest) -> bool:
        """Whether a call may be sent by the thread that waits for its reply later."""
        return not (call.buffers or call.values)

    # requests of the server (see `ServerRequestHandler`) ---------------------------------------

    def answer_request(self, verb: str, args: tuple[Any, ...]) -> tuple[Any, Sequence[memoryview]]:
        """The description of the function of a key, its code, or what it reads of this process."""
        if verb == "describe":
            spec = self._specs[args[0]]
            snapshot = spec.snapshot
            return (snapshot.name, spec.options, snapshot.manifest.to_message()), ()
        specs = list(self._specs.values())
        snapshots = [s.snapshot for s in specs if s.snapshot.manifest.fingerprint == args[0]]
        if not snapshots:
            raise KeyError(args[0])
        if verb == "code":
            return (), (memoryview(snapshots[0].code),)
        from jaxd.request.process_answers import confirmed  # few functions read their process
        from jaxd_protocol.messages.recorded_reads import to_reads
        from jaxd_protocol.pytree.literals import dump_literal

        reads = to_reads(args[1])
        if verb == "read":
            return (), (memoryview(dump_literal(snapshots[0].named_texts.answer(reads[0]))),)
        if verb == "confirm":
            for each in snapshots:
                each.learn(reads)
            return tuple(map(tuple, confirmed(snapshots[0], reads))), ()
        raise KeyError(verb)

    def call_back(
        self,
        about: CallbackOrigin | None,
        question: tuple[Any, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Any, Sequence[memoryview]]:
        """Calls a function of this process for the program that an open call runs."""
        if about is None:
            raise CallbackError(
                "the call that wants a function called back was given up. Nothing is called."
            )
        from jaxd.events.jax_callbacks import answer_callback

        is_recorded = bool(self.settings.snapshot_s)  # else no call is made again for its arrays
        return answer_callback(about, question, buffers, is_recorded=is_recorded)

    def event(
        self, connection: RequestSource, number: int, kind: str, content: dict[str, Any]
    ) -> None:
        """Handles the output, a warning or the progress of a call.

        Raises:
            ProtocolError: when the content of the event is malformed.
        """
        from jaxd.events.output import OUTPUT_EVENTS

        if getattr(connection.about(number), "is_silent", False):
            return
        try:
            if kind in OUTPUT_EVENTS:
                about = connection.about(number) if kind != "compiled" else None
                output = kind, content.get("text")
                if about is not None and about.effects().is_repeated_output(output):
                    return
                show = partial(
                    self.session.output_printer().event, connection, number, kind, content
                )
                # a call on arrays of the server seldom runs here
                if not (isinstance(about, OpenCall) and about.holds_output(show, content)):
                    show()
            elif kind == "warning":
                self.session.warning_queue.event(connection, number, content)
            else:
                about = connection.about(number)
                if content.get("stage") == "compile" and isinstance(about, OpenCall):
                    about.show_output()
                self.session.progress().event(connection, number, kind, content)
        except (AttributeError, TypeError, ValueError) as error:
            # else it would end the thread that reads, and with it what others wait for
            raise ProtocolError(
                "the server reports something that cannot be understood. Install the same jaxd on "
                "both sides."
            ) from error


_HELD_OUTPUT: Final = "_jaxd_held_output"


def end_held_output(error: BaseException, *, runs_here: bool) -> None:
    """Shows what the trace of a call has put out that has failed so; nothing where it runs here."""
    show = vars(error).pop(_HELD_OUTPUT, None)
    if show is not None and not runs_here:
        show()


class OpenCall:
    """One call from its first attempt to its result.

    Both ways to wait for the result use it: blocking (`wait`), and by a future (`AsyncCall`). It
    alone decides after a failed attempt whether and when the next one follows. For one thread at
    a time.

    Args:
        session: with the server.
        call: the request.

    Attributes:
        is_silent: whether nothing that it prints, warns of or reports is shown.
        may_go_on: see `CallbackOrigin`.
        call: the request, as the next attempt sends it.
        deadline: `time.monotonic()` after which the caller does not wait; None: without limit.
        opened: the connection of this attempt, and the session to which its values belong.
        number: of this attempt's request on that connection.
        is_sent: whether the server may have it.
        has_called_back: whether a program has called functions of this process for it.
        callback_error: what the last of these raised.
        may_have_changed: whether the arrays of its caller may not be what they were any more.
    """

    is_silent = False
    may_go_on = False
    opened: OpenSession
    number = 0
    is_sent = False
    has_called_back = False
    callback_error: BaseException | None = None
    may_have_changed = False
    _held_output: Sequence[Callable[[], None]] = ()
    _has_put_out = False  # what its program has printed, and not only its trace
    _abandoned_plan: DedupPlan | None = None
    _busy_backoff: BusyBackoff | None = None
    _effects: CallEffects | None = None
    _lineage: Any = None  # of its result, where it was needed before that is here
    _replaced_workers = 0
    _retry_limits: RetryLimits | None = None
    _sent: PendingReply | None = None
    _was_lost = False

    def __init__(self, session: Session, call: CallRequest) -> None:
        self._session = session
        self.call = call
        self.deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        # one at most; whichever thread takes it out releases it
        self._transfers: list[CallTransfer] = []

    def wait(self) -> tuple[tuple[Any, ...], Frame]:
        """Makes the call and waits for its reply, which may be a failure.

        Raises:
            JaxdError: when there is no reply.
        """
        try:
            while True:
                sent = self._sent
                if sent is None:
                    self.begin_attempt()
                try:
                    value, frame = self._request() if sent is None else self._reply_to(sent)
                except ConnectionLost as error:
                    self.check_repeatable(error)
                    continue
                self.issue_warnings()
                pause_s = None if value[0] != FAILED else self.pause_after(value[1])
                if pause_s is None:
                    return value, frame
                time.sleep(pause_s)
        except BaseException:
            self.release_lost_result()
            raise

    def send(self, then: Callable[[PendingReply], None]) -> None:
        """Sends the call, which has no data beside its message; `wait` waits for the reply later.

        It may go out with the next message, or at `push`.

        Args:
            then: called when the reply is there, in the thread that reads it; after an interrupt
                perhaps twice.

        Raises:
            JaxdError: when it cannot be sent.
        """
        from jaxd.connection.shared_reader import PendingReply  # imports rpyc

        connection = self.begin_attempt()
        sent = self._sent = PendingReply(then, is_ahead=True, about=self)
        self.is_sent = True
        try:
            message = self.call.message()
            connection.launch("call", message, (), sent, self.number, more=True)
        except ConnectionLost as error:
            self._sent = None  # `wait` sends it again
            self.check_repeatable(error)

    def _reply_to(self, sent: PendingReply) -> tuple[tuple[Any, ...], Frame]:
        """Waits for the reply to what `send` has sent."""
        connection, deadline = self.opened.connection, self.deadline
        until = None if deadline is None else deadline + REPLY_GRACE_S
        try:
            value, frame = connection.wait(self.number, sent, until, self._late_after(sent))
            self.end_attempt(value)
        except BaseException as error:
            connection.cancel(self.number)
            self.end_attempt(None, error)
            raise
        finally:
            self._sent = None
        return value, frame

    def push(self) -> None:
        """Has what `send` has sent go out now."""
        if self._sent is not None:
            self.opened.connection.push()

    def give_up(self) -> None:
        """Nobody will wait: cancels what `send` has sent, and releases its result."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        connection = self.opened.connection
        connection.cancel(self.number)
        late = self._late_after(sent)
        if connection.shared_reader.abandon(self.number, sent, late):
            return
        if sent.done:
            late(sent)
        else:  # the connection has ended
            self.reply_was_lost()
            self.release_lost_result()

    def _late_after(self, sent: PendingReply) -> Callable[[PendingReply], None]:
        """Called with the reply that comes when nobody waits for it any more."""
        assert sent.then is not None
        return partial(self._on_late_after, sent.then)

    def _on_late_after(self, then: Callable[[PendingReply], None], pending: PendingReply) -> None:
        then(pending)
        self._on_late_reply(pending)

    def _request(self) -> tuple[tuple[Any, ...], Frame]:
        """Sends the call once, and waits for its reply."""
        connection, values = self.opened
        call, deadline = self.call, self.deadline
        transfer = self.load() if call.buffers else None
        queue = values.release_queue
        is_releasing = (queue.pending or queue.young) and not values.defers_releases()
        drops = queue.take_all() if is_releasing else b""
        self.is_sent = True
        try:
            value, frame = connection.request(
                "call",
                call.message(() if transfer is None else transfer.data_locations, 0, drops),
                () if transfer is None else transfer.buffers,
                None if deadline is None else deadline + REPLY_GRACE_S,
                self.number,
                late=self._on_late_reply,
                about=self,
            )
            self.end_attempt(value)
        except BaseException as error:
            connection.cancel(self.number)
            if drops:
                queue.requeue(drops)  # a second release of the same array does no harm
            self.abandon()
            self.end_attempt(None, error)
            raise
        return value, frame

    def _on_late_reply(self, pending: PendingReply) -> None:
        """Releases what the call left on the server, whose caller had stopped waiting."""
        self.release_abandoned()
        if isinstance(pending.error, ConnectionLost):
            self.reply_was_lost()
            self.release_lost_result()
        elif self.call.result_policy is not None:
            with suppress(BaseException):
                self.result(*pending.result())

    # one attempt -------------------------------------------------------------------------------

    def begin_attempt(self, *, fresh: bool = False) -> ClientConnection:
        """The connection for the next attempt; see `Session.current`.

        Raises:
            JaxdError: when there is none, or the call may not be repeated there.
        """
        self.opened = self._session.current(fresh, self.deadline)
        connection = self.opened.connection
        if self._retry_limits is not None:
            self.call = self._retry_limits.prepare_retry(
                self.call, connection.worker, self._session.outages
            )
        if self._effects is not None:
            self._effects.begin_attempt()
        self.number = connection.number()
        self.is_sent = False
        return connection

    @property
    def connection(self) -> ClientConnection | None:
        """Over which this attempt was sent."""
        return self.opened.connection

    def load(self, *, copied: bool = False) -> CallTransfer:
        """Prepares the transfer of the call's data; see `TransferRouter.prepare`."""
        transfer = self._session.transfer_router().prepare(
            self.call,
            self.opened.connection,
            self.opened.values.deduplicator,
            copied=copied,
            deadline=self.deadline,
        )
        self._transfers.append(transfer)
        return transfer

    def end_attempt(self, reply: Any, error: BaseException | None = None) -> bool:
        """The attempt has this reply, or this error: releases its data; whether it has a result.

        Raises:
            ProtocolError: when the reply is malformed.
        """
        ready = error is None and check_reply(reply)[0] != FAILED
        if self._held_output and (ready or error is not None):
            self.show_output()
        if self._transfers:
            self._end_transfer(reply if ready else None)
        progress = self._session.progress.made
        if not ready or (progress is not None and progress.is_active):
            self._session.progress().finish(self.opened.connection, self.number, ready=ready)
        return ready

    def _end_transfer(self, reply: tuple[Any, ...] | None) -> None:
        """Releases the data of the attempt; what a result that stays was made of is kept there.

        Args:
            reply: the result; None when there is none.
        """
        with suppress(IndexError):  # another thread was faster
            transfer = self._transfers.pop()
            try:
                if reply is not None and self._stays(reply):
                    self._lineage = self._lineage_of_result(transfer)
            finally:
                transfer.release(reply)

    def _stays(self, reply: tuple[Any, ...]) -> bool:
        """Whether some of a result stays on the server."""
        policy = self.call.result_policy
        return policy is not None and (policy.above == KEEP_ALL or reply[4:5] != NOTHING_STAYS)

    def _lineage_of_result(self, transfer: CallTransfer | None = None) -> Any:
        """How its result, which stays, is made again."""
        if self._lineage is not None:
            return self._lineage
        # what it has called back may have changed the arrays of its caller
        is_changed = bool(self.call.buffers) and (self.may_have_changed or self.has_called_back)
        calls = self.opened.values.calls  # of the session in which the values are
        return calls.lineage_of(self.call, self._effects, transfer, is_changed=is_changed)

    def release(self) -> None:
        """Releases the data of the attempt, which has no result."""
        with suppress(IndexError):  # another thread was faster
            self._transfers.pop().release()

    def abandon(self) -> None:
        """As `release`, of an attempt whose reply may still come."""
        with suppress(IndexError):
            transfer = self._transfers.pop()
            self._abandoned_plan = transfer.dedup_plan
            transfer.release()

    def release_abandoned(self) -> None:
        """The reply came to an attempt that was abandoned."""
        plan, self._abandoned_plan = self._abandoned_plan, None
        if plan is not None:
            plan.abandon()

    def reply_was_lost(self) -> None:
        """The connection of the attempt has ended: the server may have a result that nobody has."""
        self._was_lost = self._was_lost or self.is_sent

    def release_lost_result(self) -> None:
        """Nobody waits any more: what an attempt whose reply was lost left on the server can go."""
        policy = self.call.result_policy
        if policy is not None and self._was_lost:
            queue = self.opened.values.release_queue
            queue.start()
            queue.add(value_ids_of(policy.number))

    def issue_warnings(self) -> None:
        """Issues what the server warned of; see `WarningQueue.issue`."""
        if self._session.warning_queue.has_pending:
            self._session.warning_queue.issue(self.opened.connection, self.number)

    def holds_output(self, show: Callable[[], None], content: Mapping[str, Any]) -> bool:
        """Whether output is shown later: that of a trace, of a call that may yet run here.

        Here the function would be traced once more, and put it out again.

        Args:
            show: shows it.
            content: what it is.
        """
        if self.call.is_first and content.get("traced"):
            self._held_output = (*self._held_output, show)
            return True
        self._has_put_out = self._has_put_out or not content.get("traced")
        self.show_output()
        return False

    def show_output(self) -> None:
        """Shows what is held: the trace is over, and was no vain one."""
        held, self._held_output = self._held_output, ()
        for show in held:
            show()

    def effects(self) -> CallEffects:
        """Those that it has had in this process; they do not happen twice."""
        if self._effects is None:
            from jaxd.events.effects import CallEffects  # most processes have none

            self._effects = CallEffects()
        return self._effects

    def before_callback(self) -> None:
        """Keeps what it was called with: a function of this process may change that.

        It is sent again with that when its worker ends, and a result that stays is made of it.
        """
        if self._lineage is not None or self.has_called_back or self.may_have_changed:
            return
        call = self.call
        if call.result_policy is None:
            nothing = ResultPolicy(new_call_number(), KEEP_NONE, KEEP_NONE)
            call = call._replace(result_policy=nothing)
        made = self.opened.values.calls.lineage_of(call, self.effects())
        if self._lineage is None:  # else a function may have run since another thread made it
            self._lineage = made

    def _takes_what_it_took(self) -> bool:
        """Whether it can be sent again, though it has called back: with what it was called with."""
        lineage = self._lineage
        if lineage is None or lineage.obstacle:
            return False
        kept = lineage.call
        self.call = self.call._replace(buffers=kept.buffers, sources={}, leaf_headers={})
        return True

    # what follows a failed attempt -------------------------------------------------------------

    def check_repeatable(self, error: ConnectionLost) -> None:
        """Returns when the call may be sent again after its connection was lost.

        Raises:
            CalledBack: when it has called back: its effects must not happen twice.
            ConnectionLost: when it was lost too often.
        """
        self.reply_was_lost()
        name = self.call.spec.snapshot.name
        if self.has_called_back and not self._takes_what_it_took():
            raise CalledBack(
                f"the connection to the server ended while {name} was running, after it had called "
                "back functions of this process. It is not repeated by itself, because their "
                "effects would happen twice. Call it again if that does no harm."
            ) from error
        from jaxd.dispatch.retry import RetryLimits  # most processes have none

        self._retry_limits = self._retry_limits or RetryLimits(name)
        self._replaced_workers = 0
        worker = self.opened.connection.worker if self.is_sent else None
        self._retry_limits.record(error, worker, self._session.outages)

    def pause_after(self, failure: Failure) -> float | None:
        """Seconds until the call is sent again, when it was refused; None: the failure is final.

        Raises:
            BaseException: the failure, where a function that was called back has raised its cause.
        """
        is_replaced = is_failure(failure, WorkerReplaced)
        if is_replaced:
            self._session.drain(self.opened.connection)
        if self.callback_error is not None:
            raise self._exception_of(failure) from self.callback_error
        if is_replaced:
            self._replaced_workers += 1
            return 0.0 if self._replaced_workers < MAX_WORKERS else None
        if is_failure(failure, ServerDraining):
            other = self._session.elsewhere(self.call)
            self._session = other or self._session
            return None if other is None else 0.0
        if not is_failure(failure, Busy):
            return None
        self._replaced_workers = 0
        from jaxd.dispatch.retry import BusyBackoff  # a server seldom is

        self._busy_backoff = self._busy_backoff or BusyBackoff(self.deadline)
        return self._busy_backoff.pause_s(float(failure[4]))

    # the result --------------------------------------------------------------------------------

    def result(self, value: tuple[Any, ...], frame: Frame) -> Any:
        """The result in the reply.

        Args:
            value: the reply.
            frame: with the buffers beside it.

        Raises:
            BaseException: the failure in the reply, or why the result cannot be read here.
        """
        call = self.call
        if value[0] == FAILED:
            raise self._exception_of(value[1])
        if len(value) < 3 or type(value[2]) is not bytes:
            raise unreadable_reply_error()
        had_no_effects = not (self.has_called_back or self._has_put_out or call.values)
        try:
            result = self._read(value, frame)
            about = call.spec.snapshot.reader.remote_object(value[1])
            if about is not None and had_no_effects and call.results != "remote":
                self._refuse_remote_object(about)
        except ResultError as error:
            if had_no_effects:
                set_origin(error, FailureOrigin("reading"))
            raise
        return result

    def _refuse_remote_object(self, about: str) -> None:
        """Raises `ResultError` where the call can run here, with a result that is whole."""
        from jaxd.dispatch.local_runs import runs_locally  # few results have such objects

        if runs_locally(self._session, self.call.fallback, is_connected=True):
            raise ResultError(
                f"the result of {self.call.spec.snapshot.name} holds something that only the "
                f"server has: {about}. Return dicts, lists and tuples of arrays, or use a "
                "function that this process has."
            )

    def _read(self, value: tuple[Any, ...], frame: Frame) -> Any:
        call, snapshot, buffers = self.call, self.call.spec.snapshot, frame.buffers
        if self._stays(value):
            lineage, self._lineage = self._lineage_of_result(), None  # a future may outlive it
            if lineage is not None:
                lineage.settle(run_seconds(value))
            calls, session = self.opened.values.calls, self.opened.connection.session
            home = InlineLeaves.of(value, buffers)
            return calls.read(call, value[1], home, lineage=lineage, session=session)
        with snapshot.pickling_context():
            return snapshot.reader.read(value[1], value[2], buffers, call.results)

    def _exception_of(self, failure: Failure) -> BaseException:
        from jaxd.results.exceptions import exception_of

        snapshot, address = self.call.spec.snapshot, self.opened.connection.address
        error = exception_of(failure, snapshot.name, snapshot.reader, address)
        if self.has_called_back:
            set_origin(error, FailureOrigin())  # it had effects
        if self._held_output:
            vars(error)[_HELD_OUTPUT] = self.show_output
        return error


class HasCaller(Protocol):
    """Something that is bound to one server: a `jaxd.Client`."""

    @property
    def caller(self) -> Caller:
        """What makes its calls."""


_default_callers: dict[Settings, Caller] = {}


def default_caller(settings: Settings, make: Callable[[Settings], Caller] = Caller) -> Caller:
    """The caller that all functions with these settings share; `make` makes it."""
    caller = _default_callers.get(settings)
    return caller if caller is not None else _default_callers.setdefault(settings, make(settings))


def default_callers() -> list[Caller]:
    """Those that functions have been given in this process so far."""
    return list(_default_callers.values())


class CallerLookup:
    """Gives the caller of a function at its first call: the environment may change until then.

    Args:
        server, host, port, token: options of `persistent_call`.
        caller: that of the client which was given instead of these.
        verify: whether programs are compared, see `jaxd.tracing.verification`; None: as the
            settings say.
        make: makes a caller that follows the settings.
        place: where calls run, see `jaxd.tracing.here`; None: as the settings say.

    Attributes:
        store: the store whose programs run in this process, from the first call on; None: there is
            none, or there is a server.

    Raises:
        ConfigurationError: when an address is not usable.
    """

    __slots__ = ("_address", "_changes", "_found", "_make", "store")

    def __init__(
        self,
        server: str | Address | None = None,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        caller: Caller | None = None,
        verify: bool | None = None,
        make: Callable[[Settings], Caller] = Caller,
        place: str | None = None,
    ) -> None:
        self._changes = {"verify": verify, "place": place}
        self._make = make
        self._address = server, host, port, token
        self._found: list[Caller | None] = []
        self.store: str | None = None
        if caller is not None:
            self._found.append(None if caller.settings.retraces else caller)
        if server is not None or host is not None or port is not None:
            Settings.resolve(*self._address)

    def __call__(self) -> Caller | None:
        """What makes the calls; None where they run in this process."""
        if runs_here():
            return None
        if not self._found:
            settings = Settings.resolve(*self._address).replaced(**self._changes)
            is_inline = settings.inline or settings.retraces
            found = None if is_inline else default_caller(settings, self._make)
            self.store = None if settings.retraces else settings.store
            self._found.append(found)
        return self._found[0]
