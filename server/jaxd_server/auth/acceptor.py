"""Accepts and authenticates connections: rpyc's server over a listener that the host opened.

One of the modules that import rpyc; relies on `Server.start`, which calls `accept`, on `_listen`,
`_accept_method`, and on the attributes that `Server.__init__` would have set. Imports no jax: what
is done with those who were let in is for those who derive from it.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import selectors
import socket
import threading
from typing import Any, Protocol

import rpyc
from rpyc.utils.server import ThreadedServer

from jaxd_protocol.errors import Busy, JaxdError
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.accounts import ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer
from jaxd_server.auth.handshake_slots import MAX_HANDSHAKES, refuse_busy
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.rate_limit import RateLimiter, rate_limit_key

_RESERVED_FILES = 32
"""Of those that the process may open: XLA opens one for each program that it compiles."""

_RETRY_S = 1.0
"""Until a process that may open no more files tries again to accept."""

_LOG_BURST = 100
"""In the log, of refused peers of one address; after that it is one a second."""


class Authenticates(Protocol):
    """Authenticates peers: an `Authenticator`, or a `HandoverReceiver` behind a gateway."""

    def admit(self, sock: socket.socket) -> AuthenticatedPeer:
        """Lets one peer in, or raises."""


class Acceptor(ThreadedServer):  # type: ignore[misc]
    """Accepts the peers of one listener, with a thread for each.

    The listening socket is shared with the host and with the process that comes after this one:
    it is never shut down here, only closed.

    Args:
        listener: an inherited, bound and listening socket.
        address: what it listens on.
        authenticator: decides who may connect.
        most_clients: that may be here at the same time.
        connected_accounts: closes connections of revoked accounts; by default none are.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        authenticator: Authenticates,
        most_clients: int,
        connected_accounts: ConnectedAccounts | None = None,
    ) -> None:
        self.active = False
        self._closed = False
        self.service = rpyc.VoidService()
        self.authenticator = authenticator.admit
        self.backlog = socket.SOMAXCONN
        self.auto_register = False
        self.protocol_config: dict[str, Any] = {}
        self.clients: set[socket.socket] = set()
        self.listener = listener
        listener.setblocking(False)  # another process that shares it may take the client first
        self._stopped, self._stop = socket.socketpair()
        self.host, self.port = str(address), 0
        self.logger = logging.getLogger("jaxd_server.rpyc")  # one line per accept: not for people
        self._address = address
        self._most_clients = most_clients
        self._connected_accounts = connected_accounts or ConnectedAccounts()
        self._lines = RateLimiter(_LOG_BURST, 1.0)

    def start_in_thread(self) -> None:
        """Accepts from now on, in a thread of its own."""
        threading.Thread(
            target=self.start, name=f"jaxd-accept-{self._address}", daemon=True
        ).start()

    def close(self) -> None:
        """Accepts no more; open connections stay."""
        self.active = False
        self._stop.close()

    def start(self) -> None:
        """Accepts until the endpoint is closed, and closes this process's end of the listener."""
        with self.listener, self._stopped:
            super().start()

    def accept(self) -> None:
        """Waits for the next client and serves it; `start` calls this again and again.

        rpyc's own version takes one more client after it was closed, and drops it: that client
        is the next worker's. And it gives up the listener when the process has no more files.
        """
        if self._is_stopped(self.listener):
            raise EOFError("the endpoint was closed")
        try:
            _reserve_descriptors(self.listener)
            sock, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another worker was faster, or the client is gone
        except OSError as error:
            log_event("cannot_accept", level=logging.WARNING, reason=str(error))
            self._is_stopped(timeout_s=_RETRY_S)
            return
        if len(self.clients) >= self._most_clients + MAX_HANDSHAKES:
            self._refuse_busy(sock, "more clients come at once than this server has threads for.")
            return
        sock.setblocking(True)
        self.clients.add(sock)
        try:
            self._accept_method(sock)
        except RuntimeError as error:  # no thread for it: it is asked to connect later
            log_event("cannot_serve", level=logging.WARNING, reason=str(error))
            self.clients.discard(sock)
            self._refuse_busy(sock, "this server can start no more threads now.")
            self._is_stopped(timeout_s=_RETRY_S)

    def _refuse_busy(self, sock: socket.socket, why: str) -> None:
        """Refuses a peer for which there is no thread, and asks it to connect later."""
        line = None if self._address.kind == "tls" else sock
        refuse_busy(sock, line, Busy(f"{why} Come again in a moment.", _RETRY_S))
        sock.close()

    def _is_stopped(self, *sockets: socket.socket, timeout_s: float | None = None) -> bool:
        """Waits for one of the sockets, the end, or the time; returns whether it is the end."""
        with selectors.PollSelector() as selector:  # takes no file, of which there may be no more
            for sock in (self._stopped, *sockets):
                selector.register(sock, selectors.EVENT_READ)
            return any(key.fileobj is self._stopped for key, _ in selector.select(timeout_s))

    def _authenticate_and_serve_client(self, sock: socket.socket) -> None:
        peer, place = _peer_of(sock)
        admitted = None
        try:
            admitted = self.authenticator(sock)
            if admitted.account is not None:
                log_event("client_admitted", peer=peer, principal=admitted.principal)
            with self._connected_accounts.present(sock, admitted.account):
                self._serve_client(admitted)
        except JaxdError as error:
            self._log_refusal("client_refused", logging.WARNING, peer, place, str(error))
        except (EOFError, OSError) as error:
            self._log_refusal("client_left_early", logging.INFO, peer, place, str(error))
        except Exception:  # noqa: BLE001  one client must not end the others
            log_event("client_failed", level=logging.ERROR, peer=peer)
        finally:
            self.clients.discard(sock)
            sock.close()
            if admitted is not None:
                admitted.stream.close()

    def _serve_client(self, admitted: AuthenticatedPeer) -> None:
        """Serves an authenticated client; returns when its connection ends."""
        raise NotImplementedError

    def _log_refusal(self, event: str, level: int, peer: str, place: str, reason: str) -> None:
        """At a limited rate, so that a peer cannot fill the disk."""
        passed_over = self._lines.acquire(place)
        if passed_over is not None:
            log_event(event, level=level, peer=peer, reason=reason, not_logged=passed_over or None)


def _reserve_descriptors(sock: socket.socket) -> None:
    """Returns when another client leaves enough files for those that are here already.

    Raises:
        OSError: when it does not.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    probe = os.dup(sock.fileno())  # the lowest number that is free
    os.close(probe)
    if probe >= limit - min(_RESERVED_FILES, limit // 4):
        raise OSError(errno.EMFILE, f"{probe} of {limit} files are open; the rest is kept")


def _peer_of(sock: socket.socket) -> tuple[str, str]:
    """What the log calls a peer, and the place that its lines are counted for."""
    try:
        name = sock.getpeername()
    except OSError:
        return "gone", "gone"
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else "unix", rate_limit_key(name)
