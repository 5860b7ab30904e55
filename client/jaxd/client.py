"""A client: finds its server, keeps one connection to it, makes calls, survives restarts."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar, Unpack, overload

from jaxd.arguments import encode_arguments
from jaxd.progress import Progress
from jaxd.results import ResultReader, ResultsAs
from jaxd.settings import Settings
from jaxd.statistics import Statistics
from jaxd_protocol.addresses import Address
from jaxd_protocol.calls import FAILED, MAY_REPEAT
from jaxd_protocol.errors import ConnectionLost, WorkerLost
from jaxd_protocol.failures import rebuild_failure

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.decorator import CallOptions
    from jaxd.identity import Spec
    from jaxd.persistent_function import PersistentFunction
    from jaxd.transport import ClientConnection, Pending
    from jaxd_protocol.wire import Frame

__all__ = ["Client", "default_client", "probe"]

P = ParamSpec("P")
R = TypeVar("R")


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


class Client:
    """One server, as seen from this process. Thread-safe; connects when first used.

    Use it as a context manager, or call `close`.

    Args:
        settings: where the server is and how to prove who we are.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._specs: weakref.WeakValueDictionary[bytes, Spec] = weakref.WeakValueDictionary()
        self._classes: dict[tuple[str, str], type] = {}
        self._reader = ResultReader(self._classes)
        self._progress = Progress()
        self._session: str | None = None
        self.reset()
        _clients.add(self)

    def reset(self) -> None:
        """Forgets the connection without ending it, as the child of a fork must."""
        self._lock = threading.Lock()  # guards connecting
        self._connection: ClientConnection | None = None
        self._window: threading.BoundedSemaphore | None = None
        self._address: Address | None = None

    # for users --------------------------------------------------------------------------------

    @overload
    def persistent_call(
        self, function: Callable[P, R], /, **options: Unpack[CallOptions]
    ) -> PersistentFunction[P, R]: ...
    @overload
    def persistent_call(
        self, function: None = None, /, **options: Unpack[CallOptions]
    ) -> Callable[[Callable[P, R]], PersistentFunction[P, R]]: ...

    def persistent_call(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[CallOptions]
    ) -> Any:
        """As `jaxd.persistent_call`, bound to this client's server."""
        from jaxd.decorator import persistent_call

        options["client"] = self
        return persistent_call(function, **options)

    def statistics(self) -> Statistics:
        """The server's counters, as they are now.

        Raises:
            NoServer: when it cannot be reached.
        """
        return Statistics.from_report(self._ask("statistics"))

    def info(self) -> dict[str, Any]:
        """What the server is: versions, devices, limits, and how this client reaches it."""
        server = self._ask("info")
        return {**server, "address": str(self._address), "session": self._session}

    def close(self) -> None:
        """Ends the connection. The client may be used again: it then connects anew."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "connected" if self._connection and self._connection.alive else "not connected"
        where = self._address or self._settings.server or "the local server"
        return f"<jaxd.Client of {where}, {state}>"

    # for persistent functions -----------------------------------------------------------------

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
        self._submit(call, future, repeated=False)
        return future

    def _submit(self, call: Encoded, future: Future[Any], repeated: bool) -> None:
        connection = self.connection()
        window = self._window
        assert window is not None
        number = connection.number()

        def then(pending: Pending) -> None:
            window.release()
            self._progress.finish(connection, number)
            may_repeat = not repeated and not call.buffers  # views of arrays that may have changed
            if isinstance(pending.error, ConnectionLost) and may_repeat:
                threading.Thread(target=self._repeat, args=(call, future), daemon=True).start()
            else:
                self._settle(call, future, pending)

        window.acquire()
        try:
            connection.submit("call", call.message, call.buffers, then, number)
        except ConnectionLost:
            window.release()
            if repeated:
                raise
            self._submit(call, future, repeated=True)
        except BaseException:
            window.release()
            raise

    def _repeat(self, call: Encoded, future: Future[Any]) -> None:
        try:
            self._submit(call, future, repeated=True)
        except BaseException as error:  # noqa: BLE001  the future's owner decides about it
            future.set_exception(error)

    def _settle(self, call: Encoded, future: Future[Any], pending: Pending) -> None:
        def outcome() -> Any:
            value, frame = pending.result()
            return self._outcome(call, value, frame.buffers)

        _settle_with(future, outcome)

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

        self._address = find_server(self._settings)
        connection, welcome = open_connection(self._address, self._settings, self._session, self)
        self._session = welcome["session"]
        self._window = threading.BoundedSemaphore(int(welcome["slots"]))
        return connection

    def _ask(self, verb: str) -> dict[str, Any]:
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


def _settle_with(future: Future[Any], outcome: Callable[[], Any]) -> None:
    """Gives a future its result or exception, unless its owner has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(outcome())
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        future.set_exception(error)


def _lost_twice(call: Encoded) -> WorkerLost:
    return WorkerLost(
        f"the server's worker ended while it ran {call.spec.identity.name}, and again when the "
        "call was repeated. The function may be what ends it: see the server's log, and try it "
        "with JAXD_INLINE=1."
    )


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_defaults: dict[Settings, Client] = {}
_defaults_lock = threading.Lock()


def default_client(settings: Settings) -> Client:
    """The client that all functions with these settings share."""
    client = _defaults.get(settings)
    if client is None:
        with _defaults_lock:
            client = _defaults.setdefault(settings, Client(settings))
    return client


def probe(address: Address, settings: Settings) -> dict[str, Any]:
    """What the server at `address` says of itself; see `jaxd.connecting.probe`."""
    from jaxd.connecting import probe as ask

    return ask(address, settings)


def _after_fork() -> None:
    global _defaults_lock  # noqa: PLW0603  the parent's may be held by a thread that is not here
    _defaults_lock = threading.Lock()
    for client in list(_clients):
        client.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
