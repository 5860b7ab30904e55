"""Makes calls: one server, one connection to it, made when needed and made again when lost."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxd.arguments import encode_arguments
from jaxd.forking import forget_after_fork
from jaxd.notices import Notices
from jaxd.progress import Progress
from jaxd.results import ResultsAs
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.calls import FAILED, MAY_REPEAT, STRICT
from jaxd_protocol.errors import ConnectionLost, ProtocolError, WorkerLost, WorkerReplaced
from jaxd_protocol.failures import is_failure, rebuild_failure

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.identity import Spec
    from jaxd.transport import ClientConnection
    from jaxd_protocol.wire import Frame

__all__ = ["MAX_WORKERS", "Caller", "Encoded", "HasCaller", "default_caller", "lost_twice"]

MAX_WORKERS = 4
"""How many workers a call is sent to while one after the other is replaced."""


class Encoded(NamedTuple):
    """A call ready to be sent.

    Attributes:
        spec: what is called.
        skeleton, blob, buffers: the arguments; buffers are views of the caller's arrays.
        timeout_s: seconds until the caller gives up, or None.
        results: in which form the caller wants the result.
        strict: whether packages that differ on the server are an error.
    """

    spec: Spec
    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    timeout_s: float | None
    results: ResultsAs
    strict: bool = False

    @property
    def message(self) -> tuple[Any, ...]:
        """The arguments of the request `call`."""
        flags = MAY_REPEAT | (STRICT if self.strict else 0)
        return (self.spec.key, self.skeleton, self.blob, self.timeout_s, flags)


class Caller:
    """One server, as persistent functions use it. Thread-safe; connects when first used.

    Args:
        settings: where the server is and how to prove who we are.

    Attributes:
        address: where it was found; None before the first connection.
        session: the server's name for this client, kept over connections.
        window: has a place for each submitted call that the server takes from one connection.
        progress: shows how far long calls are.
        notices: says what the server has to say of calls.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._specs: weakref.WeakValueDictionary[bytes, Spec] = weakref.WeakValueDictionary()
        self.progress = Progress()
        self.notices = Notices()
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the connection without ending it, as the child of a fork must."""
        self._lock = threading.Lock()  # guards connecting
        self._connection: ClientConnection | None = None
        self._left: list[ClientConnection] = []
        self.window: threading.BoundedSemaphore | None = None
        self.address: Address | None = None
        self.session: str | None = None

    @property
    def connected(self) -> bool:
        """Whether there is an open connection now."""
        return self._connection is not None and self._connection.alive

    def close(self) -> None:
        """Ends the connection; the next call makes another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.retire()

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
        if spec.identity.archives is None:
            encoded = encode_arguments(args, kwargs, spec.identity.statics, classes)
        else:
            with spec.identity.shipping():
                encoded = encode_arguments(args, kwargs, spec.identity.statics, classes)
        if classes:
            spec.identity.reader.learn(classes)
        return Encoded(spec, *encoded, timeout_s, results, strict)

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
        value, frame = self.reply(call)
        return self.outcome(call, value, frame.buffers)

    def reply(self, call: Encoded) -> tuple[Any, Frame]:
        """What the server says to a call: to the second one, when its worker ends during the first.

        Raises:
            JaxdError: when there is no reply.
        """
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        try:
            return self._request(call, deadline)
        except ConnectionLost:
            try:
                return self._request(call, deadline)
            except ConnectionLost as error:
                raise lost_twice(call) from error

    def _request(self, call: Encoded, deadline: float | None) -> tuple[Any, Frame]:
        """The reply of the worker, or of the one that takes its place."""
        for _ in range(MAX_WORKERS):
            connection = self.connection()
            number = connection.number()
            ready = False
            try:
                value, frame = connection.request(
                    "call", call.message, call.buffers, deadline, number
                )
                ready = value[0] != FAILED
            finally:
                self.progress.finish(connection, number, ready=ready)
            replaced = not ready and is_failure(value[1], WorkerReplaced)
            if replaced:
                self.leave(connection)
            if self.notices.waiting:
                self.notices.issue(connection, number)
            if not replaced:
                break
        return value, frame

    def submit(self, call: Encoded) -> Future[Any]:
        """Makes the call without waiting; when this returns, arguments may be overwritten.

        Waits when as many calls are in flight as the server takes from one connection.

        Raises:
            JaxdError: when the call could not be made. What happens to it later is in the future.
        """
        from jaxd.submission import Submission  # imports concurrent.futures

        submission = Submission(self, call)
        submission.start()
        return submission.future

    def outcome(self, call: Encoded, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> Any:
        """The result in a reply.

        Raises:
            BaseException: what the reply carries instead, or why the result cannot be read here.
        """
        if value[0] == FAILED:
            raise rebuild_failure(value[1])
        identity = call.spec.identity
        if identity.archives is None:
            return identity.reader.read(value[1], value[2], buffers, call.results)
        with identity.shipping():
            return identity.reader.read(value[1], value[2], buffers, call.results)

    # the connection ---------------------------------------------------------------------------

    def connection(self, fresh: bool = False) -> ClientConnection:
        """The open connection; made, or made anew, when there is none.

        Args:
            fresh: look first whether the server has ended it while it was idle; for what cannot
                be sent twice.

        Raises:
            NoServer: when no server can be found, started or reached.
            AuthenticationFailed, VersionMismatch, ProtocolError: when the handshake fails.
        """
        connection = self._connection
        if fresh and connection is not None:
            connection.check()
        if connection is not None and connection.alive:
            return connection
        with self._lock:
            if self._connection is None or not self._connection.alive:
                try:
                    self._connection = self._connect()
                except ProtocolError:
                    if not self._left:
                        raise
                    self._connection = self._connect()  # that was the old worker, at its very end
                for left in self._left:
                    left.check()  # the worker behind it has ended by now
                self._left = [left for left in self._left if left.alive]
            return self._connection

    def leave(self, connection: ClientConnection) -> None:
        """Makes no more calls over a connection whose worker is being replaced.

        Those that are open on it are still answered.
        """
        with self._lock:
            if self._connection is connection:
                self._connection = None
                self._left.append(connection)

    def _connect(self) -> ClientConnection:
        from jaxd.connecting import open_connection  # imports rpyc: only a first call needs it
        from jaxd.discovery import find_server

        self.address = find_server(self.settings)
        connection, welcome = open_connection(self.address, self.settings, self.session, self)
        self.session = welcome["session"]
        self.window = threading.BoundedSemaphore(int(welcome["slots"]))
        self.notices.compare(welcome["peer"].versions)
        return connection

    def ask(self, verb: str, *args: Any) -> dict[str, Any]:
        """The server's answer to a question about itself, such as `statistics`, `info` or `why`.

        Raises:
            NoServer: when it cannot be reached.
            JaxdError: what it says instead of an answer.
        """
        try:
            value, _ = self.connection().request(verb, args)
        except ConnectionLost:
            value, _ = self.connection().request(verb, args)
        if value[0] == FAILED:
            raise rebuild_failure(value[1])
        report: dict[str, Any] = json.loads(value)
        return report

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

    def event(
        self, connection: ClientConnection, number: int, kind: str, content: dict[str, Any]
    ) -> None:
        """A call of ours reports how far it is, or what its user should know."""
        if kind == "warning":
            self.notices.event(connection, number, content)
        else:
            self.progress.event(connection, number, kind, content)


def lost_twice(call: Encoded) -> WorkerLost:
    """The error for a call whose worker ended, and ended again when it was repeated."""
    return WorkerLost(
        f"the server's worker ended while it ran {call.spec.identity.name}, and again when the "
        "call was repeated. The function may be what ends it: see the server's log, and try it "
        "with JAXD_INLINE=1."
    )


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
