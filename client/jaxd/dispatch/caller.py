"""Makes the calls of persistent functions on one server."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jaxd.connection.pending import WORD_S
from jaxd.connection.settings import Settings
from jaxd.dispatch.session import MAX_WORKERS, Session
from jaxd.remote_values.pipelined_calls import stay_for
from jaxd.request.arguments import encode_arguments
from jaxd.request.call_request import Encoded
from jaxd.results.reader import Home, ResultsAs, checked, unreadable
from jaxd_protocol.errors import (
    Busy,
    CallbackError,
    CalledBack,
    ConnectionLost,
    ProtocolError,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, is_failure

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.connection.pending import Pending
    from jaxd.dispatch.retry import Losses
    from jaxd.remote_values.store import OpenSession
    from jaxd.request.function_snapshot import Spec
    from jaxd.transfer.routing import Load
    from jaxd_protocol.wire import Frame


class Caller:
    """Makes calls on one server for persistent functions. Thread-safe; connects at first use.

    Args:
        settings: where the server is and how to prove who we are.

    Attributes:
        session: with the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._specs: weakref.WeakValueDictionary[bytes, Spec] = weakref.WeakValueDictionary()
        self.session = Session(settings, self)

    def encode(
        self,
        spec: Spec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_s: float | None,
        results: ResultsAs,
        strict: bool = False,
    ) -> Encoded:
        """A call, ready to be sent.

        Raises:
            ArgumentError, TracerError, PackingError: when an argument cannot travel.
        """
        self.remember(spec)
        classes: dict[tuple[str, str], type] = {}
        with spec.identity.travelling():
            encoded = encode_arguments(args, kwargs, spec.statics, classes, self.session.remote)
        if classes:
            spec.identity.reader.learn(classes)
        stay = stay_for(results, on_values=bool(encoded.values))
        return Encoded(
            spec,
            *encoded[:3],
            timeout_s,
            results,
            strict,
            encoded.values,
            encoded.owners,
            stay,
            encoded.sources,
            encoded.heads,
            (args, kwargs) if spec.identity.takes_arguments else None,
        )

    def takes_programs_only(self, timeout_s: float | None = None) -> bool:
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

    def remember(self, spec: Spec) -> None:
        """Keeps what a key stands for as long as the function lives: the server may ask."""
        if self._specs.get(spec.key) is not spec:  # another one under this key may be about to go
            self._specs[spec.key] = spec

    def call(self, call: Encoded) -> Any:
        """Makes the call and waits for its result.

        Raises:
            BaseException: what the function raised, in its own type where this process has it.
            JaxdError: when the call could not be made.
        """
        if call.values:
            return self.session.values().calls.call(call)
        value, frame, opened = self._reply(call)
        return self.outcome(call, value, frame.buffers, opened)

    def reply(self, call: Encoded) -> tuple[Any, Frame]:
        """What the server says to a call, which is repeated when its worker ends; see `Losses`.

        Raises:
            JaxdError: when there is no reply.
        """
        return self._reply(call)[:2]

    def _reply(self, call: Encoded) -> tuple[Any, Frame, OpenSession]:
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        found = self._reply_of_one(call, deadline)
        if found[0][0] == FAILED and is_failure(found[0][1], Busy):
            from jaxd.dispatch.retry import Politeness  # a server seldom is

            politeness = Politeness(deadline)
            while (pause_s := politeness.pause_s(found[0])) is not None:
                time.sleep(pause_s)
                found = self._reply_of_one(call, deadline)
        return found

    def _reply_of_one(
        self, call: Encoded, deadline: float | None
    ) -> tuple[Any, Frame, OpenSession]:
        losses: Losses | None = None
        while True:
            sent: list[OpenSession] = []
            try:
                return self._request(call, deadline, sent)
            except CalledBack:
                raise
            except ConnectionLost as error:
                from jaxd.dispatch.retry import Losses  # most processes have none

                losses = losses or Losses(call.spec.identity.name)
                losses.note(error, sent[-1].connection.worker if sent else None)
            worker = self.session.current(deadline=deadline).connection.worker
            repeated = losses.repeated(call, worker)
            self.session.hearing().before.goes_on_as(call, repeated)
            call = repeated

    def _request(
        self, call: Encoded, deadline: float | None, sent: list[OpenSession]
    ) -> tuple[Any, Frame, OpenSession]:
        """The reply of the worker, or of the one that takes its place, and who brought it.

        `sent` gets each connection over which the call went.
        """
        session = self.session
        for _ in range(MAX_WORKERS):
            opened = session.current(deadline=deadline)
            connection, values = opened
            number = connection.number()
            heard = session.hearing.made
            if heard is not None and heard.before.is_waiting:
                heard.before.again(call, connection, number)
            ready = False
            load = session.routes.load(call, connection, values.sent_before, deadline=deadline)
            drops = values.drops.take()
            late = partial(self._let_go, call, load, opened)
            sent.append(opened)
            try:
                value, frame = connection.request(
                    "call",
                    call.message(load.rows, 0, drops),
                    load.buffers,
                    None if deadline is None else deadline + WORD_S,
                    number,
                    late=late,
                    about=call,
                )
                ready = checked(value)[0] != FAILED
            except BaseException as error:
                connection.cancel(number)
                if drops:
                    values.drops.put_back(drops)  # to tell of them twice does no harm
                if isinstance(error, ConnectionLost):
                    name = call.spec.identity.name
                    session.callbacks().refuse_again(connection, number, name)
                    session.hearing().before.lost(call, connection, number)
                raise
            finally:
                load.release(value if ready else None)
                session.progress.finish(connection, number, ready=ready)
            if not ready:
                session.callbacks().raise_failure(
                    connection, number, call.spec.identity, value[1], connection.address
                )
            replaced = not ready and is_failure(value[1], WorkerReplaced)
            if replaced:
                session.leave(connection)
            if session.notices.waiting:
                session.notices.issue(connection, number)
            if not replaced:
                break
        return value, frame, opened

    def _let_go(self, call: Encoded, load: Load, opened: OpenSession, pending: Pending) -> None:
        """Discards a reply that nobody waits for: releases what the call left on the server."""
        load.abandon()
        if call.stay is not None and pending.error is None and pending.frame is not None:
            with suppress(BaseException):
                self.outcome(call, pending.value, pending.frame.buffers, opened)

    def submit(self, call: Encoded) -> Future[Any]:
        """Makes the call without waiting; when this returns, arguments may be overwritten.

        Waits when as many calls are in flight as the server takes from one connection.

        Raises:
            JaxdError: when the call could not be made. What happens to it later is in the future.
        """
        if call.values:
            return self.session.values().calls.submit(call)
        from jaxd.dispatch.async_call import Submission  # imports concurrent.futures

        submission = Submission(self.session, call, self.outcome)
        submission.start()
        return submission.future

    def outcome(
        self,
        call: Encoded,
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
        identity = call.spec.identity
        if value[0] == FAILED:
            from jaxd.results.exceptions import raised_by

            raise raised_by(value[1], identity.name, identity.reader, opened.connection.address)
        if call.stay is not None:
            return opened.values.calls.read(call, value[1], Home.of(value, buffers))
        if len(value) < 3 or type(value[2]) is not bytes:
            raise unreadable()
        with identity.travelling():
            return identity.reader.read(value[1], value[2], buffers, call.results)

    # what the server asks (see transport.Answers) ----------------------------------------------

    def question(self, verb: str, args: tuple[Any, ...]) -> tuple[Any, Sequence[memoryview]]:
        """Says what a key stands for, or sends the code behind a fingerprint."""
        if verb == "describe":
            spec = self._specs[args[0]]
            identity = spec.identity
            return (identity.name, spec.options, identity.meaning.to_message()), ()
        if verb == "code":
            for spec in list(self._specs.values()):
                if spec.identity.fingerprint == args[0]:
                    return (), (memoryview(spec.identity.code),)
        raise KeyError(verb)

    def call_back(
        self,
        connection: object,
        about: Encoded | None,
        question: tuple[Any, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Any, Sequence[memoryview]]:
        """Calls a function of this process, for a program that runs a call of ours."""
        if about is None:
            raise CallbackError(
                "the call that wants a function called back was given up. Nothing is called."
            )
        identity, arguments = about.spec.identity, about.arguments
        return self.session.callbacks().run(connection, identity, arguments, question, buffers)

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """A call of ours reports how far it is, or what its user should know.

        Raises:
            ProtocolError: when the report is made of something else than reports are.
        """
        from jaxd.events.output import HEARD

        try:
            if kind in HEARD:
                self.session.hearing().event(connection, number, kind, content)
            elif kind == "warning":
                self.session.notices.event(connection, number, content)
            else:
                self.session.progress.event(connection, number, kind, content)
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


_defaults: dict[Settings, Caller] = {}


def default_caller(settings: Settings) -> Caller:
    """The caller that all functions with these settings share."""
    caller = _defaults.get(settings)
    return caller if caller is not None else _defaults.setdefault(settings, Caller(settings))
