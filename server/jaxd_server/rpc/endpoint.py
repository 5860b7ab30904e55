"""An acceptor whose clients have their calls answered in this process."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import Busy, ConfigurationError
from jaxd_protocol.messages.pool_view import PEERS_IN_WELCOME
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import (
    ClientIdentity,
    finish_handshake,
    peer_pid,
    refuse_client,
)
from jaxd_protocol.wire import BulkChannel, stream_over
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth.acceptor import Acceptor, Authenticates
from jaxd_server.auth.accounts import ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer
from jaxd_server.cache.peers import PEER_SESSION
from jaxd_server.rpc.connection import ServerConnection
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.sessions import Session, Sessions
from jaxd_server.rpc.stock_client import serve_stock
from jaxd_server.rpc.worker_context import WorkerContext
from jaxd_server.runtime.child_startup import process_facts

_EXIT_MS: Final = 500
"""A process that ends closes its sockets first. On a busy machine the rest may take so long."""

_START: Final = 19  # of the fields after the name in /proc/PID/stat: when it was started


class ClientLife(NamedTuple):
    """The process of a client, told apart from a later one with the same id.

    Attributes:
        pid: its id.
        started: when, in ticks of the system.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, sock: socket.socket | TlsSocket, pid: int | None) -> ClientLife | None:
        """The process that connected; None where the system does not tell, or it is another one.

        None as well for this very process, whose end is that of the server.

        Args:
            sock: its connection.
            pid: the id that it says it has: that of a client beyond a relay, or in a container, is
                not that of the process which has connected.
        """
        found = peer_pid(sock) if isinstance(sock, socket.socket) else None
        if found in (None, 0, os.getpid()) or found != pid or not hasattr(os, "pidfd_open"):
            return None
        started = _started(found)
        return None if started is None else cls(found, started)

    def has_ended(self) -> bool:
        """Whether it is gone; waits for a moment where it may be about to go."""
        try:
            descriptor = self.descriptor()
        except ProcessLookupError:
            return True
        except OSError:
            return False
        try:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            return bool(waiting.poll(_EXIT_MS))
        finally:
            os.close(descriptor)

    def descriptor(self) -> int:
        """A new descriptor of the process, which is readable when that has ended.

        Raises:
            ProcessLookupError: when it is gone.
            OSError: when the system has no descriptor for it.
        """
        descriptor = os.pidfd_open(self.pid)
        if _started(self.pid) in (None, self.started):  # None: it cannot be read now
            return descriptor
        os.close(descriptor)
        raise ProcessLookupError(self.pid)  # its id belongs to another one


def _started(pid: int) -> str | None:
    facts = process_facts(pid)
    return facts[_START] if len(facts) > _START else None


class ClientExits:
    """Ends the connections of clients whose processes have ended. Thread-safe.

    Usually that closes them. But a process that such a client has forked may have them as well.
    """

    def __init__(self) -> None:
        self._open: dict[int, socket.socket] = {}  # by the descriptor of the client's process
        self._polling: select.epoll | None = None  # made for the first one
        self._lock = threading.Lock()  # guards both; a descriptor is closed under it

    @contextmanager
    def watching(self, process: ClientLife | None, sock: Any) -> Iterator[None]:
        """Within it, the connection ends with the process.

        Args:
            process: that of the client; None: nothing is known of it.
            sock: its connection.
        """
        descriptor = None
        with suppress(OSError):  # there are no more descriptors
            try:
                descriptor = None if process is None else self._register(process, sock)
            except ProcessLookupError:  # it is gone
                sock.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            if descriptor is not None:
                self._unregister(descriptor)

    def _register(self, process: ClientLife, sock: socket.socket) -> int:
        with self._lock:
            polling = self._polling = self._polling or select.epoll()
            descriptor = process.descriptor()
            self._open[descriptor] = sock
            try:
                polling.register(descriptor, select.EPOLLIN)
            except OSError:
                del self._open[descriptor]
                os.close(descriptor)
                raise
            return descriptor

    def _unregister(self, descriptor: int) -> None:
        with self._lock:
            del self._open[descriptor]
            if self._polling is not None:
                self._polling.unregister(descriptor)
            os.close(descriptor)

    def poll(self) -> None:
        """Ends the connections of those that have ended; to be called several times a second."""
        with self._lock:
            for descriptor, _ in () if self._polling is None else self._polling.poll(0):
                with suppress(OSError):  # it has ended
                    self._open[descriptor].shutdown(socket.SHUT_RDWR)


class Endpoint(Acceptor):
    """Serves the clients of one listener, each in a thread while it has something to do.

    Args:
        listener: an inherited, bound and listening socket.
        address: what it listens on.
        authenticator: authenticates them.
        sessions: where they are registered.
        worker_context: what all connections share.
        welcome: what the handshake sends a client about the server, beside its session.
        client_exits: ends connections with their clients' processes.
        connected_accounts: the open connections of accounts.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        authenticator: Authenticates,
        sessions: Sessions,
        worker_context: WorkerContext,
        welcome: Callable[[], dict[str, Any]],
        client_exits: ClientExits,
        connected_accounts: ConnectedAccounts,
    ) -> None:
        limit = worker_context.options.max_connections
        super().__init__(listener, address, authenticator, limit, connected_accounts)
        self._sessions = sessions
        self._worker_context = worker_context
        self._welcome = welcome
        self._client_exits = client_exits

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        line, client_identity = admitted.stream, admitted.client_identity
        if client_identity is None:
            return self._serve_stock_client(admitted)
        if client_identity.session == PEER_SESSION and self._worker_context.peers is not None:
            finish_handshake(line, {}, admitted.proof, {"auth": "none"})
            return self._worker_context.peers.serve(stream_over(line))
        session = self._open_session(admitted, client_identity)
        process = ClientLife.of(line, client_identity.pid)
        end.callback(self._close_session, session, process)
        welcome = {"auth": "none", "session": session.id, **self._welcome()}
        if self._worker_context.peers is not None:
            welcome[PEERS_IN_WELCOME] = True
        versions = welcome.pop("versions")
        welcome |= self._notice_for(client_identity)
        finish_handshake(line, versions, admitted.proof, welcome)
        stream = stream_over(line)
        stream.expect_descriptors()
        end.enter_context(self._client_exits.watching(process, line))
        connection = ServerConnection(stream, self._worker_context, session)
        return connection.serve(end.pop_all())

    def _open_session(self, admitted: AuthenticatedPeer, client: ClientIdentity) -> Session:
        try:
            most = self._worker_context.options.max_connections
            if self._sessions.connections >= most:
                raise Busy(  # noqa: TRY301  refused as a wrong device is
                    f"{most} clients are connected, which is as many as this server takes "
                    "(--max-connections). Close some, or connect later."
                )
            session = self._sessions.open(client.session, admitted.principal, client.device)
        except (Busy, ConfigurationError) as error:
            refuse_client(admitted.stream, error)
            raise
        session.process = str(client.pid or "")
        return session

    def _close_session(self, session: Session, process: ClientLife | None) -> None:
        self._sessions.close(session)
        if process is not None and process.has_ended():
            self._sessions.end_if_left(session)  # nobody comes back for it

    def _notice_for(self, client: ClientIdentity) -> dict[str, Any]:
        """What a client learns of the end of the worker that it was connected to before."""
        loss, values = self._worker_context.memory_loss, self._worker_context.values
        if loss is None:
            return {}
        notice = loss.notice_for(client.session, client.principal, values.limit)
        return {"notice": notice} if notice else {}

    def _serve_stock_client(self, admitted: AuthenticatedPeer) -> None:
        principal, worker_context = admitted.principal, self._worker_context
        options = worker_context.options
        share = ConnectionShare(worker_context.budget, options.slots, principal)
        stream = stream_over(admitted.stream)
        channel = BulkChannel(stream, options.max_frame_bytes, share.admit, inflates=True)
        session = self._sessions.open(None, principal, 0)  # where its calls run
        worker_context.traffic.add(channel, principal)
        try:
            serve_stock(worker_context.pipeline, share, channel, principal)
        finally:
            share.close()
            worker_context.traffic.remove(channel)
            self._sessions.close(session, for_good=True)
