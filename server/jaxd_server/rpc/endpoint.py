"""An acceptor whose clients have their calls answered in this process."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from jaxd_protocol.errors import Busy, ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import finish_handshake, refuse_client
from jaxd_protocol.wire import BulkChannel, stream_over
from jaxd_server.auth.acceptor import Acceptor, Authenticates
from jaxd_server.auth.accounts import ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer
from jaxd_server.rpc.connection import ServerConnection
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.sessions import Sessions
from jaxd_server.rpc.stock_client import serve_stock
from jaxd_server.rpc.worker_context import WorkerContext


class Endpoint(Acceptor):
    """Serves the clients of one listener, a thread for each.

    Args:
        listener: an inherited, bound and listening socket.
        address: what it listens on.
        authenticator: authenticates them.
        sessions: where they are registered.
        worker_context: what all connections share.
        welcome: what the handshake sends a client about the server, beside its session.
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
        connected_accounts: ConnectedAccounts,
    ) -> None:
        limit = worker_context.options.max_connections
        super().__init__(listener, address, authenticator, limit, connected_accounts)
        self._sessions = sessions
        self._worker_context = worker_context
        self._welcome = welcome

    def _serve_client(self, admitted: AuthenticatedPeer) -> None:
        if admitted.client_identity is None:
            return self._serve_stock_client(admitted)
        line = admitted.stream
        client_identity = admitted.client_identity
        try:
            most = self._worker_context.options.max_connections
            if self._sessions.connections >= most:
                raise Busy(  # noqa: TRY301  refused as a wrong device is
                    f"{most} clients are connected, which is as many as this server takes "
                    "(--max-connections). Close some, or connect later."
                )
            session = self._sessions.open(
                client_identity.session, admitted.principal, client_identity.device
            )
        except (Busy, ConfigurationError) as error:
            refuse_client(line, error)
            raise
        try:
            welcome = {"auth": "none", "session": session.id, **self._welcome()}
            versions = welcome.pop("versions")
            finish_handshake(line, versions, admitted.proof, welcome)
            stream = stream_over(line)
            stream.expect_descriptors()
            ServerConnection(stream, self._worker_context, session).serve()
        finally:
            self._sessions.close(session)
        return None

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
