"""Makes the calls of persistent functions on one server."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jaxd.connection.settings import REPLY_GRACE_S, Settings
from jaxd.dispatch.session import MAX_WORKERS, Session
from jaxd.request.arguments import encode_arguments
from jaxd.request.call_request import CallRequest, result_policy_for
from jaxd.results.reader import (
    NOTHING_STAYS,
    InlineLeaves,
    ResultsAs,
    check_reply,
    unreadable_reply_error,
)
from jaxd_protocol.errors import (
    Busy,
    CallbackError,
    CalledBack,
    ConnectionLost,
    ProtocolError,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, is_failure
from jaxd_protocol.messages.data_locations import KEEP_ALL

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.shared_reader import PendingReply
    from jaxd.dispatch.retry import RetryLimits
    from jaxd.remote_values.store import OpenSession
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.transfer.routing import CallTransfer
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.wire import Frame


class Caller:
    """Makes calls on one server for persistent functions. Thread-safe; connects at first use.

    Args:
        settings: where the server is and how to prove who we are.

    Attributes:
        session: with the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._specs: weakref.WeakValueDictionary[bytes, FunctionSpec] = (
            weakref.WeakValueDictionary()
        )
        self.session = Session(settings, self)

    def encode(
        self,
        spec: FunctionSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_s: float | None,
        results: ResultsAs,
        strict: bool = False,
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
            spec.snapshot.reader.learn(classes)
        stay = result_policy_for(results, on_values=bool(encoded.values))
        return CallRequest(
            spec,
            *encoded[:3],
            timeout_s,
            results,
            strict,
            encoded.values,
            encoded.buffer_leaves,
            stay,
            encoded.sources,
            encoded.leaf_headers,
            (args, kwargs) if spec.snapshot.takes_arguments else None,
        )

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
        value, frame, opened = self._reply(call)
        return self.decode_reply(call, value, frame.buffers, opened)

    def reply(self, call: CallRequest) -> tuple[Any, Frame]:
        """The reply to a call, which is repeated when its worker ends; see `RetryLimits`.

        Raises:
            JaxdError: when there is no reply.
        """
        return self._reply(call)[:2]

    def _reply(self, call: CallRequest) -> tuple[Any, Frame, OpenSession]:
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        found = self._reply_with_retries(call, deadline)
        if found[0][0] == FAILED and is_failure(found[0][1], Busy):
            from jaxd.dispatch.retry import BusyBackoff  # a server seldom is

            busy_backoff = BusyBackoff(deadline)
            while (pause_s := busy_backoff.pause_s(found[0])) is not None:
                time.sleep(pause_s)
                found = self._reply_with_retries(call, deadline)
        return found

    def _reply_with_retries(
        self, call: CallRequest, deadline: float | None
    ) -> tuple[Any, Frame, OpenSession]:
        retry_limits: RetryLimits | None = None
        while True:
            sent: list[OpenSession] = []
            try:
                return self._request(call, deadline, sent)
            except CalledBack:
                raise
            except ConnectionLost as error:
                from jaxd.dispatch.retry import RetryLimits  # most processes have none

                retry_limits = retry_limits or RetryLimits(call.spec.snapshot.name)
                retry_limits.record(error, sent[-1].connection.worker if sent else None)
            worker = self.session.current(deadline=deadline).connection.worker
            repeated = retry_limits.prepare_retry(call, worker)
            self.session.output_printer().replay_filter.transfer_to_retry(call, repeated)
            call = repeated

    def _request(
        self, call: CallRequest, deadline: float | None, sent: list[OpenSession]
    ) -> tuple[Any, Frame, OpenSession]:
        """The reply of the worker, or of the one that takes its place, and who brought it.

        `sent` gets each connection over which the call went.
        """
        session = self.session
        for _ in range(MAX_WORKERS):
            opened = session.current(deadline=deadline)
            connection = opened.connection
            number = connection.number()
            value, frame = self._attempt(call, deadline, opened, number, sent)
            replaced = False
            if value[0] == FAILED:
                session.callbacks().raise_failure(
                    connection, number, call.spec.snapshot, value[1], connection.address
                )
                replaced = is_failure(value[1], WorkerReplaced)
            if replaced:
                session.drain(connection)
            if session.warning_queue.has_pending:
                session.warning_queue.issue(connection, number)
            if not replaced:
                break
        return value, frame, opened

    def _attempt(
        self,
        call: CallRequest,
        deadline: float | None,
        opened: OpenSession,
        number: int,
        sent: list[OpenSession],
    ) -> tuple[Any, Frame]:
        """Sends the call once, and waits for its reply."""
        session = self.session
        connection, values = opened
        heard = session.output_printer.made
        if heard is not None and heard.replay_filter.has_lost_calls:
            heard.replay_filter.retried_as(call, connection, number)
        ready = False
        transfer: CallTransfer | None = None
        if call.buffers:
            transfer = session.transfer_router().prepare(
                call, connection, values.deduplicator, deadline=deadline
            )
        queue = values.release_queue
        drops = queue.take_all() if queue.pending else b""
        sent.append(opened)
        try:
            value, frame = connection.request(
                "call",
                call.message(() if transfer is None else transfer.data_locations, 0, drops),
                () if transfer is None else transfer.buffers,
                None if deadline is None else deadline + REPLY_GRACE_S,
                number,
                late=partial(self._discard_reply, call, transfer, opened),
                about=call,
            )
            ready = check_reply(value)[0] != FAILED
        except BaseException as error:
            connection.cancel(number)
            if drops:
                queue.requeue(drops)  # a second release of the same array does no harm
            if isinstance(error, ConnectionLost):
                name = call.spec.snapshot.name
                session.callbacks().check_repeatable(connection, number, name)
                session.output_printer().replay_filter.call_lost(call, connection, number)
            raise
        finally:
            if transfer is not None:
                transfer.release(value if ready else None)
            progress = session.progress.made
            if not ready or (progress is not None and progress.is_active):
                session.progress().finish(connection, number, ready=ready)
        return value, frame

    def _discard_reply(
        self,
        call: CallRequest,
        transfer: CallTransfer | None,
        opened: OpenSession,
        pending: PendingReply,
    ) -> None:
        """Discards a reply that nobody waits for: releases what the call left on the server."""
        if transfer is not None:
            transfer.abandon()
        if call.result_policy is not None and pending.error is None and pending.frame is not None:
            with suppress(BaseException):
                self.decode_reply(call, pending.value, pending.frame.buffers, opened)

    def submit(self, call: CallRequest) -> Future[Any]:
        """Makes the call without waiting; when this returns, arguments may be overwritten.

        Waits when as many calls are in flight as the server takes from one connection.

        Raises:
            JaxdError: when the call could not be made. What happens to it later is in the future.
        """
        if call.values:
            return self.session.values().calls.submit(call)
        from jaxd.dispatch.async_call import AsyncCall  # imports concurrent.futures

        async_call = AsyncCall(self.session, call, self.decode_reply)
        async_call.start()
        return async_call.future

    def decode_reply(
        self,
        call: CallRequest,
        value: tuple[Any, ...],
        buffers: Sequence[memoryview],
        opened: OpenSession,
    ) -> Any:
        """The result in a reply, which was looked at and came over that connection.

        Args:
            call: the call.
            value: the reply.
            buffers: what came beside it.
            opened: not that of today: what stayed belongs to the session of the call.

        Raises:
            BaseException: what the reply carries instead, or why the result cannot be read here.
        """
        snapshot = call.spec.snapshot
        if value[0] == FAILED:
            from jaxd.results.exceptions import exception_of

            raise exception_of(value[1], snapshot.name, snapshot.reader, opened.connection.address)
        if len(value) < 3 or type(value[2]) is not bytes:
            raise unreadable_reply_error()
        policy = call.result_policy
        if policy is not None and (policy.above == KEEP_ALL or value[4:5] != NOTHING_STAYS):
            return opened.values.calls.read(call, value[1], InlineLeaves.of(value, buffers))
        with snapshot.pickling_context():
            return snapshot.reader.read(value[1], value[2], buffers, call.results)

    # what the server asks (see `ServerRequestHandler`) -----------------------------------------

    def answer_request(self, verb: str, args: tuple[Any, ...]) -> tuple[Any, Sequence[memoryview]]:
        """Says what a key stands for, or sends the code behind a fingerprint."""
        if verb == "describe":
            spec = self._specs[args[0]]
            snapshot = spec.snapshot
            return (snapshot.name, spec.options, snapshot.manifest.to_message()), ()
        if verb == "code":
            for spec in list(self._specs.values()):
                if spec.snapshot.fingerprint == args[0]:
                    return (), (memoryview(spec.snapshot.code),)
        raise KeyError(verb)

    def call_back(
        self,
        connection: object,
        about: CallRequest | None,
        question: tuple[Any, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Any, Sequence[memoryview]]:
        """Calls a function of this process, for a program that runs a call of ours."""
        if about is None:
            raise CallbackError(
                "the call that wants a function called back was given up. Nothing is called."
            )
        snapshot, arguments = about.spec.snapshot, about.arguments
        return self.session.callbacks().run(connection, snapshot, arguments, question, buffers)

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """A call of ours reports how far it is, or what its user should know.

        Raises:
            ProtocolError: when the report is made of something else than reports are.
        """
        from jaxd.events.output import OUTPUT_EVENTS

        try:
            if kind in OUTPUT_EVENTS:
                self.session.output_printer().event(connection, number, kind, content)
            elif kind == "warning":
                self.session.warning_queue.event(connection, number, content)
            else:
                self.session.progress().event(connection, number, kind, content)
        except (AttributeError, TypeError, ValueError) as error:
            # else it would end the thread that reads, and with it what others wait for
            raise ProtocolError(
                "the server reports something that cannot be understood. Install the same jaxd on "
                "both sides."
            ) from error


class HasCaller(Protocol):
    """Something that is bound to one server: a `jaxd.Client`."""

    @property
    def caller(self) -> Caller:
        """What makes its calls."""


_default_callers: dict[Settings, Caller] = {}


def default_caller(settings: Settings) -> Caller:
    """The caller that all functions with these settings share."""
    caller = _default_callers.get(settings)
    return caller if caller is not None else _default_callers.setdefault(settings, Caller(settings))


class CallerLookup:
    """Gives the caller of a function at its first call: the environment may change until then.

    Args:
        server, host, port, token: options of `persistent_call`.
        caller: that of the client which was given instead of these.

    Raises:
        ConfigurationError: when an address is not usable.
    """

    __slots__ = ("_address", "_found")

    def __init__(
        self,
        server: str | Address | None = None,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        caller: Caller | None = None,
    ) -> None:
        self._address = server, host, port, token
        self._found: list[Caller | None] = [] if caller is None else [caller]
        if server is not None or host is not None or port is not None:
            Settings.resolve(*self._address)

    def __call__(self) -> Caller | None:
        """What makes the calls; None where they run in this process."""
        if not self._found:
            settings = Settings.resolve(*self._address)
            self._found.append(None if settings.inline else default_caller(settings))
        return self._found[0]
