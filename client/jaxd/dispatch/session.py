"""The session with one server: connected when needed, and again when the connection was lost."""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import sys
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.settings import RecoverySettings, Settings
from jaxd.events.warnings import WarningQueue
from jaxd.remote_values.store import OpenSession, RemoteStore, retry_once
from jaxd_protocol.base.process import Lazy, reset_after_fork
from jaxd_protocol.errors import Busy, JaxdError, NoServer, ProtocolError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.server_requests import ServerRequestHandler
    from jaxd.dispatch.local_runs import FallbackCounts
    from jaxd.dispatch.retry import BusyBackoff, Outage
    from jaxd.events.output import OutputPrinter
    from jaxd.events.progress import Progress
    from jaxd.request.call_request import CallRequest
    from jaxd.results.reader import ResultReader
    from jaxd.transfer.routing import TransferRouter
    from jaxd_protocol.wire import Frame


_USE_WAIT_S: Final = 2.0

MAX_WORKERS: Final = 4
"""How many workers a call is sent to while one after the other is replaced."""


class Session:
    """The session with one server: a connection, and what belongs to the session. Thread-safe.

    Connects when first used.

    Args:
        settings: address of the server, and credentials.
        handler: handles the requests of the server.

    Attributes:
        address: where it was found; None before the first connection.
        id: the server's name for this client, kept over connections.
        store: what this process has on the server in that session.
        window: has a place for each submitted call that the server takes from one connection.
        progress: gives the progress line of long calls.
        warning_queue: the warnings of the server about calls.
        output_printer: gives the printer of the output of calls.
        transfer_router: gives the router of large arrays.
        fallbacks: the calls that ran in this process and were not reported yet.
        has_device: whether the server runs calls.
        accepts: what the server takes, "code" or "exported"; None before the first connection.
        platform: what it computes on.
        keeps_use: whether `use` is asked once more before this process exits.
        outages: how often the server could not be reached for a while.
        saving: the checkpoint that was begun last, until somebody has waited for it; None: none.
        member: which server of a pool it is with: two may give their workers the same number, and
            containers the same process id.
    """

    keeps_use = False
    saving: Any = None  # of a module that few processes need
    member = ""

    def __init__(self, settings: Settings, handler: ServerRequestHandler) -> None:
        self.settings = settings
        self._handler = handler
        self.progress = Lazy(_make_progress)
        self.warning_queue = WarningQueue()
        self.output_printer: Lazy[OutputPrinter] = Lazy(self._make_output_printer)
        self.transfer_router = Lazy(_make_transfer_router)
        self.fallbacks: Lazy[FallbackCounts] = Lazy(_make_fallback_counts)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the connection without ending it, as the child of a fork must."""
        self._changed = threading.Condition()  # guards these three
        self._is_connecting = False
        self._current: OpenSession | None = None
        self._draining: list[ClientConnection] = []
        self.window: threading.BoundedSemaphore | None = None
        self.address: Address | None = None
        self.id: str | None = None
        self.store: RemoteStore | None = None
        self._notifies_exit = False
        self._outage: Outage | None = None
        self._grace_s: float | None = None
        self.accepts: str | None = None
        self.has_device = True
        self.platform = "cpu"
        self._use: dict[str, float] = {}
        self.outages = 0
        self.saving = None

    def _make_output_printer(self) -> OutputPrinter:
        from jaxd.events.output import OutputPrinter

        return OutputPrinter(self.warning_queue, self.progress())

    @property
    def open_connection(self) -> ClientConnection | None:
        """The connection that is open now."""
        found = self._current
        return found.connection if found is not None and found.connection.alive else None

    @property
    def connected(self) -> bool:
        """Whether there is an open connection now."""
        return self.open_connection is not None

    @property
    def stores(self) -> Sequence[RemoteStore]:
        """What this process has on the server; of a pool, on each member."""
        return () if self.store is None else (self.store,)

    def close(self) -> None:
        """Ends the connection; the next call makes another."""
        with self._changed:
            found, self._current = self._current, None
            left, self._draining = self._draining, []
            if self.store is not None:
                self.store.release_queue.stop()
        if found is not None:
            found.connection.retire()
        for connection in left:
            connection.retire()

    def values(self) -> RemoteStore:
        """What this process has on the server."""
        return self.current().values if self.store is None else self.store

    def notify(
        self,
        remote: RemoteStore,
        verb: str,
        *args: Any,
        over: ClientConnection | None = None,
    ) -> bool:
        """Sends a message without reply, if connected; whether the session is still current.

        Args:
            remote: of which session.
            verb: what it says.
            *args: of that.
            over: the connection to send it over, though there be a newer one; None: the present.
        """
        connection = over or self.open_connection
        if remote is not self.store:
            return False
        if connection is not None:
            with suppress(JaxdError):
                connection.notify(verb, args)
        return True

    def count_fallback(self, *, new_function: bool) -> None:
        """Counts a call that ran in this process instead of on the server, for its statistics."""
        if self.fallbacks().add(new_function=new_function):
            self._report_fallbacks()

    def _report_fallbacks(self) -> None:
        counts = self.fallbacks.made
        if counts is not None and counts.pending and self.store is not None and self.connected:
            self.notify(self.store, "fell_back", *counts.take())

    def use(self) -> dict[str, float]:
        """What the server has done for this session, by the names of its `SessionUse`.

        Of a session that is not connected, it is what was known when it was asked last.
        """
        connection = self.open_connection
        if connection is not None:
            deadline = time.monotonic() + _USE_WAIT_S
            # at the exit of this process nothing is tried again
            with suppress(JaxdError, AttributeError, TypeError, ValueError):
                value, _ = connection.request("use", (), deadline=deadline)
                found = json.loads(value)  # of a failure, which is a tuple, a TypeError
                numbers = {k: v for k, v in found.items() if type(v) in (int, float)}
                self._use = numbers or self._use
        return self._use

    def notify_exit(self) -> None:
        """Notifies the server that this process exits: its values can be released."""
        current = self._current
        if current is not None:
            current.connection.shared_reader.stop_at_exit()
        if self.store is not None:
            self._report_fallbacks()
            if self.saving is not None and self.connected:
                self.saving.finish()
            if self.keeps_use:
                self.use()
            self.store.unhold()
            self.notify(self.store, "bye")

    def connection(self) -> ClientConnection:
        """As `current`, the connection alone."""
        return self.current().connection

    def current(self, fresh: bool = False, deadline: float | None = None) -> OpenSession:
        """The open connection and its session; made, or made anew, when there is none.

        A server that has no room for one more client is tried again after the time that it gives;
        one that has given this process a session, as long as it keeps that session.

        Args:
            fresh: check first whether the server has closed it while it was idle; for what had
                better not be sent twice.
            deadline: `time.monotonic()` after which it is not tried again; None: after a minute,
                or when the session has ended.

        Raises:
            Busy: when the server has no room then.
            NoServer: when no server can be found, started or reached.
            DeadlineExceeded: when this thread, or another one, is still connecting at the deadline.
            AuthenticationFailed, VersionMismatch, ProtocolError: when the handshake fails.
        """
        found = self._current
        if fresh and found is not None:
            found.connection.check()
        if found is not None and found.connection.alive:
            return found
        return self._open_when_free(deadline)

    def _open_when_free(self, deadline: float | None) -> OpenSession:
        busy_backoff: BusyBackoff | None = None
        while True:
            try:
                return self._open_session(deadline)
            except Busy as error:
                from jaxd.dispatch.retry import BusyBackoff  # a server seldom is

                busy_backoff = busy_backoff or BusyBackoff(deadline)
                pause = busy_backoff.pause_s(error.retry_after_s)
                if pause is None:
                    raise
                pause_s = pause
            except (NoServer, ProtocolError) as error:
                pause_s = self._outage_pause_s(error, deadline)
            time.sleep(pause_s)  # without the lock: the client can be closed meanwhile

    def _outage_pause_s(self, error: JaxdError, deadline: float | None) -> float:
        """Seconds until it is tried again to reach a server that has answered before.

        Raises:
            JaxdError: when it is not: the session has ended, the caller does not wait, or something
                answers that is no server.
        """
        if self.id is None or self.address is None:
            raise error
        from jaxd.dispatch.retry import USUAL_GRACE_S, Outage, outlasted  # few processes have one

        with self._changed:
            if self._outage is None:
                grace_s = USUAL_GRACE_S if self._grace_s is None else self._grace_s
                self._outage = Outage(grace_s, self.progress().clear_line)
            outage = self._outage
        pause_s = outage.pause_s(error, self.address, deadline)
        if pause_s is None:
            raise outlasted(error, self.address, outage.seconds)
        return pause_s

    def _open_session(self, deadline: float | None) -> OpenSession:
        """As `current`, but nothing is tried again."""
        is_ours = False
        try:
            with self._changed:
                while self._is_connecting:
                    self._wait_for_others(deadline)
                if self._current is not None and self._current.connection.alive:
                    return self._current
                self._is_connecting = is_ours = True
            opened = self._current = self._connect(deadline)
            self._has_connected(opened)
            return opened
        finally:
            if is_ours:
                self._is_connecting = False
                with self._changed:
                    self._changed.notify_all()

    def _wait_for_others(self, deadline: float | None) -> None:
        """Waits while another thread connects, which may have more time. The lock is held.

        Raises:
            DeadlineExceeded: when there is no time left.
        """
        from jaxd.connection.connect import connecting_too_long  # imports rpyc
        from jaxd_protocol.wire import INTERRUPTIBLE_S

        left_s = INTERRUPTIBLE_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0.0:
            raise connecting_too_long("the server")
        self._changed.wait(min(left_s, INTERRUPTIBLE_S))

    def _has_connected(self, opened: OpenSession) -> None:
        with self._changed:
            outage, self._outage = self._outage, None
            self.outages += outage is not None
            draining, self._draining = self._draining, []
        if outage is not None:
            outage.end()
        opened.values.release_queue.resend()  # before, there was no connection
        for left in draining:
            left.check()  # the worker behind it has ended by now
        with self._changed:
            self._draining += [left for left in draining if left.alive]

    def leave(self, connection: ClientConnection) -> None:
        """Ends a connection whose session is of no more use; the next one begins another."""
        with self._changed:
            if self._current is not None and self._current.connection is connection:
                self._current = None
        with suppress(JaxdError):
            connection.notify("bye", ())
        connection.shut()  # what others have asked over it is asked again

    def drain(self, connection: ClientConnection) -> None:
        """Stops using a connection for new calls: its worker is being replaced.

        Those that are open on it are still answered.
        """
        with self._changed:
            if self._current is not None and self._current.connection is connection:
                self._current = None
                self._draining.append(connection)

    def elsewhere(self, call: CallRequest) -> Session | None:
        """The session for a call that is refused, as the server stops; None: there is no other.

        Args:
            call: the call.
        """
        return None

    def _connect(self, deadline: float | None) -> OpenSession:
        from jaxd.connection.connect import (
            open_connection,  # imports rpyc: only a first call needs it
        )

        may_start = self.settings.server is None and (self.settings.autostart or self.id is None)
        if not may_start:
            self.address = self.settings.server or self.address
        if may_start or self.address is None:
            from jaxd.connection.discovery import find_server

            self.address = find_server(self.settings, deadline)
        known = None if self.store is not None and self.store.needs_session else self.id
        connection, welcome = open_connection(
            self.address, self.settings, known, self._handler, deadline
        )
        if self.member:
            connection.worker = (*connection.worker, self.member)
            connection.session = (*connection.session, self.member)
        progress = self.progress
        connection.on_transfer = lambda sender: progress().transfer(sender)
        if self.store is None or self.id != welcome["session"]:
            if self.store is not None and self.store.may_restore() and not connection.notice:
                self.id = welcome["session"]
                self.store.begin_session(connection)
            else:
                self.store = self._replace_store(welcome["session"], self.address, connection)
        self.store.takes_data = welcome.get("devices", 1) == 1
        self.store.keeps_snapshots = welcome.get("keeps_snapshots", False) and not self.member
        self._grace_s = _seconds_in(welcome.get("session_grace_s"))
        self.window = threading.BoundedSemaphore(int(welcome["slots"]))
        self.accepts = welcome.get("accept", "code")
        self.has_device = welcome.get("has_device", True)
        self.platform = welcome.get("platform", "cpu")
        self.warning_queue.compare_versions(welcome["peer"].versions)
        if connection.notice:
            self.warning_queue.add_memory_warning(connection.notice)
        if self.platform != "cpu":
            from jaxd.interop.gpu_guard import keep_jax_off_gpu  # only with an accelerator

            in_the_way = keep_jax_off_gpu(welcome)
            if in_the_way is not None:
                self.warning_queue.add_device_warning(in_the_way)
        return OpenSession(connection, self.store)

    def _replace_store(
        self, session: str, address: Address, connection: ClientConnection
    ) -> RemoteStore:
        """The store of a new session; that of the session before it is stopped."""
        if self.store is not None:
            self.store.release_queue.stop()
        self.id = session
        if not self._notifies_exit:
            self._notifies_exit = True
            skip_last_collections_at_exit()
            atexit.register(_notify_exit, weakref.ref(self))
        of = self.settings
        kept = RecoverySettings(of.snapshot_s, of.snapshot_bytes, of.lineage_s)
        return RemoteStore(
            self,
            address,
            connection.worker,
            compress=self.settings.compress,
            settings=kept if kept.interval_s else None,
        )

    def ask(self, verb: str, *args: Any) -> dict[str, Any]:
        """The server's answer to a question about itself, such as `statistics`, `info` or `why`.

        Raises:
            NoServer: when it cannot be reached.
            JaxdError: the failure that is its answer.
        """
        self._report_fallbacks()
        report: dict[str, Any] = json.loads(self.request(verb, args)[0])
        return report

    def request(
        self,
        verb: str,
        args: tuple[Any, ...],
        buffers: Sequence[memoryview] = (),
        reader: ResultReader | None = None,
    ) -> tuple[Any, Frame]:
        """The reply to a request without effects, which may be sent twice.

        Args:
            verb: what to call.
            args: plain values.
            buffers: bulk data beside them.
            reader: knows the exceptions of the user's function that the failure may name.

        Raises:
            NoServer: when the server cannot be reached.
            BaseException: the failure that is its reply.
        """
        value, frame = retry_once(lambda: self.connection().request(verb, args, buffers))
        if value[0] == FAILED:
            from jaxd.results.exceptions import shows_all_frames
            from jaxd_protocol.messages.failures import decode_failure

            raise decode_failure(value[1], reader, with_jax=shows_all_frames())
        return value, frame


def _seconds_in(told: Any) -> float | None:
    """A time that a server has told; None where it is none."""
    return float(told) if isinstance(told, int | float) and told >= 0 else None


def _make_progress() -> Progress:
    from jaxd.events.progress import Progress  # few calls take so long that it is shown

    return Progress()


def _make_fallback_counts() -> FallbackCounts:
    from jaxd.dispatch.local_runs import FallbackCounts  # few functions fall back

    return FallbackCounts()


def _make_transfer_router() -> TransferRouter:
    from jaxd.transfer.routing import TransferRouter  # many processes send nothing large

    return TransferRouter()


# the exit of the process --------------------------------------------------------------------------


def _notify_exit(of: weakref.ref[Session]) -> None:
    session = of()
    if session is not None:
        session.notify_exit()


@functools.cache
def skip_last_collections_at_exit() -> None:
    """Spares this process two searches for cycles of garbage, when it exits.

    They take 20 ms in a process that has imported numpy, and 0.2 s in one that has imported jax.
    Their use is that finalizers run, so they stay where there may be one: a file that is written
    to, an object with `__del__`, a generator that is suspended, packages with native code of which
    nothing is known. It is decided after all that is registered with `atexit` from now on.
    """
    atexit.register(_skip_last_collections)


def _skip_last_collections() -> None:
    objects = gc.get_objects()
    kinds = set(map(type, objects))
    files = {kind for kind in kinds if io.IOBase.__base__ in kind.__mro__}
    if any([_is_written(each) for each in objects if type(each) in files]):  # noqa: C419  faster
        return
    if GeneratorType in kinds:  # jax keeps one that is never begun
        if any([each.gi_suspended for each in objects if type(each) is GeneratorType]):  # noqa: C419
            return
        kinds.discard(GeneratorType)
    native = {
        name.partition(".")[0]
        for name, module in list(sys.modules.items())
        if isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
    }
    trusted = sys.stdlib_module_names | _WITHOUT_FINALIZERS
    if all(_has_no_finalizer(kind, native - trusted) for kind in kinds):
        gc.freeze()


_HARMLESS: Final = frozenset(
    {"_io", "jaxd", "jaxd_protocol", "jaxlib", "plumbum", "rpyc", "socket"}
)
"""Where classes come from whose finalizers do nothing that the end of the process does not do."""

_WITHOUT_FINALIZERS: Final = frozenset(
    {"PIL", "charset_normalizer", "contourpy", "jaxlib", "kiwisolver", "matplotlib", "ml_dtypes"}
    | {"msgpack", "numpy", "optree", "pandas", "psutil", "scipy", "sklearn", "tree", "wcwidth"}
    | {"wrapt", "yaml"}
    | {"_csparsetools", "_cyutility", "_moduleTNC", "_ni_label"}  # of scipy
)
"""Packages with native code in which nothing is finalized."""


def _has_no_finalizer(kind: type, doubtful: Collection[str]) -> bool:
    module: Any = kind.__module__  # a class may have anything by that name
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root in _HARMLESS or not (hasattr(kind, "__del__") or root in doubtful)


def _is_written(file: Any) -> bool:
    """Whether there may be something in it that was not written out yet."""
    if file.closed or not file.writable():
        return False
    try:
        return bool(file.fileno() > _STDERR)
    except OSError:
        return False  # it is in memory


_STDERR: Final = 2
