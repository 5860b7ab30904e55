"""rpyc's server over a listener that the host opened: accept, authenticate, serve.

One of the doors to rpyc; relies on `Server.start`, `accept`, `_listen` and on the attributes that
`Server.__init__` would have set.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import rpyc
from rpyc.utils.server import ThreadedServer

from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.handshake import finish_greeting
from jaxd_protocol.wire import BulkChannel, BulkStream, tune_socket
from jaxd_server.budget import Share
from jaxd_server.connection import ServerConnection, Workshop
from jaxd_server.doorman import Admitted, Doorman
from jaxd_server.logs import log_event
from jaxd_server.sessions import Sessions
from jaxd_server.stock import serve_stock

__all__ = ["Endpoint"]


class Endpoint(ThreadedServer):  # type: ignore[misc]
    """Serves the clients of one listener, a thread for each.

    The listening socket is shared with the host and with the worker that comes after this one:
    it is never shut down here, only closed.

    Args:
        listener: an inherited, bound and listening socket.
        address: what it listens on.
        doorman: decides who comes in.
        sessions: where our own clients are entered.
        workshop: what all connections share.
        welcome: what a client is told of the server, beside its session.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        doorman: Doorman,
        sessions: Sessions,
        workshop: Workshop,
        welcome: Callable[[], dict[str, Any]],
    ) -> None:
        self.active = False
        self._closed = False
        self.service = rpyc.VoidService()
        self.authenticator = doorman.admit
        self.backlog = socket.SOMAXCONN
        self.auto_register = False
        self.protocol_config: dict[str, Any] = {}
        self.clients: set[socket.socket] = set()
        self.listener = listener
        self.host, self.port = str(address), 0
        self.logger = logging.getLogger("jaxd_server.rpyc")  # one line per accept: not for people
        self._address = address
        self._sessions = sessions
        self._workshop = workshop
        self._welcome = welcome

    def start_in_thread(self) -> None:
        """Accepts from now on, in a thread of its own."""
        threading.Thread(
            target=self.start, name=f"jaxd-accept-{self._address}", daemon=True
        ).start()

    def close(self) -> None:
        """Accepts no more; open connections stay."""
        self.active = False
        self.listener.close()

    def _authenticate_and_serve_client(self, sock: socket.socket) -> None:
        peer = _peer_of(sock)
        try:
            admitted = self.authenticator(sock)
            self._serve_client(sock, admitted)
        except JaxdError as error:
            log_event("client_refused", level=logging.WARNING, peer=peer, reason=str(error))
        except (EOFError, OSError) as error:
            log_event("client_left_early", peer=peer, reason=str(error))
        except Exception:  # noqa: BLE001  one client must not end the others
            log_event("client_failed", level=logging.ERROR, peer=peer)
        finally:
            self.clients.discard(sock)
            sock.close()

    def _serve_client(self, sock: socket.socket, admitted: Admitted) -> None:
        workshop = self._workshop
        if admitted.guest is None or admitted.said is None:
            tune_socket(sock)
            share = Share(workshop.budget, workshop.slots)
            channel = BulkChannel(BulkStream(sock), workshop.max_frame_bytes)
            return serve_stock(workshop.pipeline, share, channel, admitted.principal)
        session = self._sessions.enter(admitted.guest.session, admitted.principal)
        try:
            welcome = {"auth": "none", "session": session.id, **self._welcome()}
            versions = welcome.pop("versions")
            finish_greeting(sock, versions, admitted.token, admitted.said, welcome)
            tune_socket(sock)
            ServerConnection(self.service, BulkStream(sock), workshop).serve()
        finally:
            self._sessions.leave(session)
        return None


def _peer_of(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "gone"
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else "unix"
