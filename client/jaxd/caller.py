"""Makes calls on one server."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jaxd.arguments import encode_arguments
from jaxd.encoded import Encoded
from jaxd.link import Link
from jaxd.pending import WORD_S
from jaxd.results import Home, ResultsAs, checked, unreadable
from jaxd.settings import Settings
from jaxd.value_calls import stay_for
from jaxd_protocol.calls import FAILED, is_failure
from jaxd_protocol.errors import (
    Busy,
    CallbackError,
    CalledBack,
    ConnectionLost,
    ProtocolError,
    WorkerReplaced,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.identity import Spec
    from jaxd.losses import Losses
    from jaxd.pending import Pending
    from jaxd.routes import Load
    from jaxd.transport import ClientConnection
    from jaxd_protocol.wire import Frame

__all__ = ["MAX_WORKERS", "Caller", "HasCaller", "default_caller"]

MAX_WORKERS = 4
"""How many workers a call is sent to while one after the other is replaced."""


class Caller(Link):
    """One server, as persistent functions use it. Thread-safe; connects when first used.

    Args:
        settings: where the server is and how to prove who we are.
    """

    def __init__(self, settings: Settings) -> None:
        self._specs: weakref.WeakValueDictionary[bytes, Spec] = weakref.WeakValueDictionary()
        super().__init__(settings, self)

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
            encoded = encode_arguments(args, kwargs, spec.statics, classes, self.remote)
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
        if self.accepts is None:
            self.connection(deadline=None if timeout_s is None else time.monotonic() + timeout_s)
        return self.accepts == "exported"

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
            return self.values().calls.call(call)
        value, frame, connection = self._reply(call)
        return self.outcome(call, value, frame.buffers, connection)

    def reply(self, call: Encoded) -> tuple[Any, Frame]:
        """What the server says to a call, which is repeated when its worker ends; see `Losses`.

        Raises:
            JaxdError: when there is no reply.
        """
        return self._reply(call)[:2]

    def _reply(self, call: Encoded) -> tuple[Any, Frame, ClientConnection]:
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        found = self._reply_of_one(call, deadline)
        if found[0][0] == FAILED and is_failure(found[0][1], Busy):
            from jaxd.politeness import Politeness  # a server seldom is

            politeness = Politeness(deadline)
            while (pause_s := politeness.pause_s(found[0])) is not None:
                time.sleep(pause_s)
                found = self._reply_of_one(call, deadline)
        return found

    def _reply_of_one(
        self, call: Encoded, deadline: float | None
    ) -> tuple[Any, Frame, ClientConnection]:
        losses: Losses | None = None
        while True:
            sent: list[ClientConnection] = []
            try:
                return self._request(call, deadline, sent)
            except CalledBack:
                raise
            except ConnectionLost as error:
                from jaxd.losses import Losses  # most processes have none

                losses = losses or Losses(call.spec.identity.name)
                losses.note(error, sent[-1].worker if sent else None)
            repeated = losses.repeated(call, self.connection(deadline=deadline).worker)
            self.hearing.before.goes_on_as(call, repeated)
            call = repeated

    def _request(
        self, call: Encoded, deadline: float | None, sent: list[ClientConnection]
    ) -> tuple[Any, Frame, ClientConnection]:
        """The reply of the worker, or of the one that takes its place, and who brought it.

        `sent` gets each connection over which the call went.
        """
        for _ in range(MAX_WORKERS):
            connection = self.connection(deadline=deadline)
            number = connection.number()
            heard = self._hearing.made
            if heard is not None and heard.before.is_waiting:
                heard.before.again(call, connection, number)
            ready = False
            load = self.routes.load(call, connection, spare=True, deadline=deadline)
            remote = connection.remote
            drops = b"" if remote is None else remote.drops.take()
            late = partial(self._let_go, call, load, connection)
            sent.append(connection)
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
                if remote is not None and drops:
                    remote.drops.put_back(drops)  # to tell of them twice does no harm
                if isinstance(error, ConnectionLost):
                    self.callbacks.refuse_again(connection, number, call.spec.identity.name)
                    self.hearing.before.lost(call, connection, number)
                raise
            finally:
                load.release(value if ready else None)
                self.progress.finish(connection, number, ready=ready)
            if not ready:
                self.callbacks.raise_failure(connection, number, call, value[1])
            replaced = not ready and is_failure(value[1], WorkerReplaced)
            if replaced:
                self.leave(connection)
            if self.notices.waiting:
                self.notices.issue(connection, number)
            if not replaced:
                break
        return value, frame, connection

    def _let_go(
        self, call: Encoded, load: Load, connection: ClientConnection, pending: Pending
    ) -> None:
        """A reply that nobody waits for any more: what it has left on the server goes."""
        load.abandon()
        if call.stay is not None and pending.error is None and pending.frame is not None:
            with suppress(BaseException):
                self.outcome(call, pending.value, pending.frame.buffers, connection)

    def submit(self, call: Encoded) -> Future[Any]:
        """Makes the call without waiting; when this returns, arguments may be overwritten.

        Waits when as many calls are in flight as the server takes from one connection.

        Raises:
            JaxdError: when the call could not be made. What happens to it later is in the future.
        """
        if call.values:
            return self.values().calls.submit(call)
        from jaxd.submission import Submission  # imports concurrent.futures

        submission = Submission(self, call)
        submission.start()
        return submission.future

    def outcome(
        self,
        call: Encoded,
        value: tuple[Any, ...],
        buffers: Sequence[memoryview],
        connection: ClientConnection,
    ) -> Any:
        """The result in a reply, which was looked at and came over that connection.

        Raises:
            BaseException: what the reply carries instead, or why the result cannot be read here.
        """
        if value[0] == FAILED:
            from jaxd.raised import raised_by

            raise raised_by(value[1], call.spec.identity, connection)
        identity = call.spec.identity
        if call.stay is not None:
            remote = connection.remote  # not that of today: what stayed belongs to its session
            assert remote is not None
            return remote.calls.read(call, value[1], Home.of(value, buffers))
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
        connection: ClientConnection,
        about: Encoded | None,
        question: tuple[Any, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Any, Sequence[memoryview]]:
        """Calls a function of this process, for a program that runs a call of ours."""
        if about is None:
            raise CallbackError(
                "the call that wants a function called back was given up. Nothing is called."
            )
        return self.callbacks.run(connection, about, question, buffers)

    def event(
        self, connection: ClientConnection, number: int, kind: str, content: dict[str, Any]
    ) -> None:
        """A call of ours reports how far it is, or what its user should know.

        Raises:
            ProtocolError: when the report is made of something else than reports are.
        """
        from jaxd.hearing import HEARD

        try:
            if kind in HEARD:
                self.hearing.event(connection, number, kind, content)
            elif kind == "warning":
                self.notices.event(connection, number, content)
            else:
                self.progress.event(connection, number, kind, content)
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
