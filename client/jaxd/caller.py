"""Makes calls: one server, one connection to it, made when needed and made again when lost."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxd.arguments import encode_arguments
from jaxd.progress import Progress
from jaxd.results import ResultReader, ResultsAs
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.calls import FAILED, MAY_REPEAT
from jaxd_protocol.errors import ConnectionLost, DeadlineExceeded, WorkerLost
from jaxd_protocol.failures import rebuild_failure

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.identity import Spec
    from jaxd.transport import ClientConnection, Pending
    from jaxd_protocol.wire import Frame

__all__ = ["Caller", "Encoded", "HasCaller", "default_caller"]


class Encoded(NamedTuple):
    """A call ready to be sent.

    Attributes:
        spec: what is called.
        skeleton, blob, buffers: the arguments; buffers are views of the caller's arrays.
        timeout_s: seconds until the caller gives up, or None.
        results: in which form the caller wants the result.
    """

    spec: Spec
    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    timeout_s: float | None
    results: ResultsAs

    @property
    def message(self) -> tuple[Any, ...]:
        """The arguments of the request `call`."""
        return (self.spec.key, self.skeleton, self.blob, self.timeout_s, MAY_REPEAT)


class Caller:
    """One server, as persistent functions use it. Thread-safe; connects when first used.

    Args:
        settings: where the server is and how to prove who we are.

    Attributes:
        address: where it was found; None before the first connection.
        session: the server's name for this client, kept over connections.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._specs: weakref.WeakValueDictionary[bytes, Spec] = weakref.WeakValueDictionary()
        self._classes: dict[tuple[str, str], type] = {}
        self._reader = ResultReader(self._classes)
        self._progress = Progress()
        self.reset()
        _callers.add(self)

    def reset(self) -> None:
        """Forgets the connection without ending it, as the child of a fork must."""
        self._lock = threading.Lock()  # guards connecting
        self._connection: ClientConnection | None = None
        self._window: threading.BoundedSemaphore | None = None
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
            connection.shut()

    def encode(
        self,
        spec: Spec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_s: float | None,
        results: ResultsAs,
    ) -> Encoded:
        """A call, ready to be sent.

        Raises:
            ArgumentError, TracerError, PackingError: when an argument cannot travel.
        """
        if spec.key not in self._specs:
            self._specs[spec.key] = spec
            self._classes.update(spec.identity.classes)
        encoded = encode_arguments(args, kwargs, spec.identity.statics, self._classes)
        return Encoded(spec, *encoded, timeout_s, results)

    def call(self, call: Encoded) -> Any:
        """Makes the call and waits for its result.

        Raises:
            BaseException: what the function raised, in its own type where this process has it.
            JaxdError: when the call could not be made.
        """
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        try:
            value, frame = self._request(call, deadline)
        except ConnectionLost:
            try:
                value, frame = self._request(call, deadline)
            except ConnectionLost as error:
                raise _lost_twice(call) from error
        return self._outcome(call, value, frame.buffers)

    def _request(self, call: Encoded, deadline: float | None) -> tuple[Any, Frame]:
        connection = self.connection()
        number = connection.number()
        try:
            return connection.request("call", call.message, call.buffers, deadline, number)
        finally:
            self._progress.finish(connection, number)

    def submit(self, call: Encoded) -> Future[Any]:
        """Makes the call without waiting; when this returns, arguments may be overwritten.

        Waits when as many calls are in flight as the server takes from one connection.

        Raises:
            JaxdError: when the call could not be made. What happens to it later is in the future.
        """
        from concurrent.futures import Future

        future: Future[Any] = Future()
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        self._submit(call, future, deadline, repeated=False)
        return future

    def _submit(
        self, call: Encoded, future: Future[Any], deadline: float | None, repeated: bool
    ) -> None:
        connection = self.connection()
        window = self._window
        assert window is not None
        number = connection.number()

        def then(pending: Pending) -> None:
            self._progress.finish(connection, number)
            if isinstance(pending.error, ConnectionLost):
                self._lost(call, future, deadline, repeated)
            else:
                self._settle(call, future, pending)

        window.acquire()
        future.add_done_callback(lambda _: window.release())
        try:
            connection.submit("call", call.message, call.buffers, then, number)
        except ConnectionLost:
            if repeated:
                future.cancel()
                raise _lost_twice(call) from None
            return self._submit(call, future, deadline, repeated=True)
        except BaseException:
            future.cancel()  # gives its place in the window back
            raise
        if deadline is not None:
            _expire_at(deadline, connection, number, future)
        return None

    def _lost(
        self, call: Encoded, future: Future[Any], deadline: float | None, repeated: bool
    ) -> None:
        """Repeats a submitted call once, in a thread of its own: whoever reads must go on."""

        def repeat() -> None:
            try:
                self._submit(call, future, deadline, repeated=True)
            except BaseException as error:  # noqa: BLE001  the future's owner decides about it
                _settle_with(future, error)

        if repeated:
            _settle_with(future, _lost_twice(call))
        elif call.buffers:  # views of the caller's arrays, which may have changed
            _settle_with(future, ConnectionLost(_NOT_REPEATED))
        else:
            threading.Thread(target=repeat, name="jaxd-repeat", daemon=True).start()

    def _settle(self, call: Encoded, future: Future[Any], pending: Pending) -> None:
        try:
            value, frame = pending.result()
            result = self._outcome(call, value, frame.buffers)
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            _settle_with(future, error)
        else:
            _settle_with(future, None, result)

    def _outcome(self, call: Encoded, value: tuple[Any, ...], buffers: Sequence[memoryview]) -> Any:
        if value[0] == FAILED:
            raise rebuild_failure(value[1])
        return self._reader.read(value[1], value[2], buffers, call.results)

    # the connection ---------------------------------------------------------------------------

    def connection(self) -> ClientConnection:
        """The open connection; made, or made anew, when there is none.

        Raises:
            NoServer: when no server can be found, started or reached.
            AuthenticationFailed, VersionMismatch, ProtocolError: when the handshake fails.
        """
        connection = self._connection
        if connection is not None and connection.alive:
            return connection
        with self._lock:
            if self._connection is None or not self._connection.alive:
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> ClientConnection:
        from jaxd.connecting import open_connection  # imports rpyc: only a first call needs it
        from jaxd.discovery import find_server

        self.address = find_server(self.settings)
        connection, welcome = open_connection(self.address, self.settings, self.session, self)
        self.session = welcome["session"]
        self._window = threading.BoundedSemaphore(int(welcome["slots"]))
        return connection

    def ask(self, verb: str) -> dict[str, Any]:
        """The server's answer to `statistics` or `info`.

        Raises:
            NoServer: when it cannot be reached.
        """
        try:
            value, _ = self.connection().request(verb, ())
        except ConnectionLost:
            value, _ = self.connection().request(verb, ())
        report: dict[str, Any] = json.loads(value)
        return report

    # what the server asks (see transport.Answers) ----------------------------------------------

    def question(self, verb: str, args: tuple[Any, ...]) -> tuple[Any, Sequence[memoryview]]:
        """Says what a key stands for, or sends the code behind a fingerprint."""
        if verb == "describe":
            spec = self._specs[args[0]]
            return (spec.identity.fingerprint, spec.identity.name, spec.options), ()
        if verb == "code":
            for spec in list(self._specs.values()):
                if spec.identity.fingerprint == args[0]:
                    return (), (memoryview(spec.identity.code),)
        raise KeyError(verb)

    def event(
        self, connection: ClientConnection, number: int, kind: str, content: dict[str, Any]
    ) -> None:
        """A call of ours reports how far it is."""
        self._progress.event(connection, number, kind, content)


_NOT_REPEATED = (
    "the connection ended while a submitted call was open, and its arrays may have changed since. "
    "Submit it again."
)


def _settle_with(future: Future[Any], error: BaseException | None, result: Any = None) -> None:
    """Gives a future its outcome, unless it has one or was cancelled."""
    from concurrent.futures import InvalidStateError

    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _expire_at(
    deadline: float, connection: ClientConnection, number: int, future: Future[Any]
) -> None:
    """Lets a submitted call fail when its time is over."""
    late = DeadlineExceeded(
        "the call's timeout_s passed before its result arrived. The server may still be working "
        "on it; give the call more time, or submit it again later."
    )
    timer = threading.Timer(
        max(0.0, deadline - time.monotonic()), connection.expire, (number, late)
    )
    timer.daemon = True
    future.add_done_callback(lambda _: timer.cancel())
    timer.start()


def _lost_twice(call: Encoded) -> WorkerLost:
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


_callers: weakref.WeakSet[Caller] = weakref.WeakSet()
_defaults: dict[Settings, Caller] = {}
_defaults_lock = threading.Lock()


def default_caller(settings: Settings) -> Caller:
    """The caller that all functions with these settings share."""
    caller = _defaults.get(settings)
    if caller is None:
        with _defaults_lock:
            caller = _defaults.setdefault(settings, Caller(settings))
    return caller


def _after_fork() -> None:
    global _defaults_lock  # noqa: PLW0603  the parent's may be held by a thread that is not here
    _defaults_lock = threading.Lock()
    for caller in list(_callers):
        caller.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
