"""Accepts and authenticates connections on a listener that the host opened.

Imports no jax. Serving an authenticated client is the task of the subclasses.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal, Protocol

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import Busy, JaxdError, ServerStartFailed
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import refuse_client
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, Authenticator
from jaxd_server.auth.handshake_slots import FIRST_BYTES_S, MAX_HANDSHAKES, refuse_busy
from jaxd_server.auth.listeners import Listener
from jaxd_server.runtime.limits import RateLimiter, rate_limit_key
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import start_vital

_RESERVED_FILES = 32
"""File descriptors that are not used for clients: XLA opens a file for each compilation."""

_RETRY_S = 1.0
"""Delay before the next `accept` when the process has no free file descriptor or thread."""

_MAX_REFUSED = 64
"""Clients that are told at a time that there is no worker; others wait for a moment."""

_LOG_BURST = 100
"""Log lines about refused peers of one address; after that it is one a second."""


class Authenticates(Protocol):
    """Authenticates peers: an `Authenticator`, or a `HandoverReceiver` behind a gateway."""

    def admit(self, sock: socket.socket) -> AuthenticatedPeer:
        """Authenticates one peer, or raises."""


class Acceptor:
    """Accepts the peers of one listener, and authenticates each in a thread of its own.

    A connection may outlive that thread. What its end has to undo is therefore kept in an object,
    an `ExitStack`, which whoever ends the connection closes.

    The listening socket is shared with the host and with the process that comes after this one:
    it is never shut down here, only closed.

    Args:
        listener: an inherited, bound and listening socket.
        address: what it listens on.
        authenticator: decides who may connect.
        max_clients: how many may be connected at the same time.
        connected_accounts: closes connections of revoked accounts.

    Attributes:
        is_short: whether clients wait because there are no files or threads left for them.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        authenticator: Authenticates,
        max_clients: int,
        connected_accounts: ConnectedAccounts,
    ) -> None:
        self.listener = listener
        listener.setblocking(False)  # another process that shares it may take the client first
        self._stopped, self._stop = socket.socketpair()
        self._clients: set[socket.socket] = set()
        self._address = address
        self._authenticator = authenticator
        self._max_clients = max_clients
        self._connected_accounts = connected_accounts
        self._log_limiter = RateLimiter(_LOG_BURST, 1.0)
        self.is_short = False

    def start_in_thread(self) -> None:
        """Accepts clients from now on, in a thread of its own, without which the process ends."""
        start_vital(self._run, f"jaxd-accept-{self._address}")

    def close(self) -> None:
        """Accepts no more clients; open connections stay."""
        self._stop.close()

    def _run(self) -> None:
        """Accepts until `close`, then closes this process's end of the listener."""
        with self.listener, self._stopped:
            while not self._is_stopped(self.listener):
                self._accept()
                self.is_short = False

    def _accept(self) -> None:
        """Accepts one client and starts its thread. Keeps the listener, whatever fails."""
        try:
            _reserve_descriptors(self.listener)
            sock, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another worker was faster, or the client is gone
        except OSError as error:
            log_event("cannot_accept", reason=str(error))
            self.is_short = True
            self._is_stopped(timeout_s=_RETRY_S)
            return
        if len(self._clients) >= self._max_clients + MAX_HANDSHAKES:
            self._refuse_busy(sock, "more clients come at once than this server has threads for.")
            return
        sock.setblocking(True)
        self._clients.add(sock)
        try:
            start_daemon("jaxd-client", self._handle, sock)
        except Busy as error:
            log_event("cannot_serve", reason=str(error))
            self._clients.discard(sock)
            self._refuse_busy(sock, f"the server takes no more clients now: {error}")
            self.is_short = True
            self._is_stopped(timeout_s=_RETRY_S)

    def _refuse_busy(self, sock: socket.socket, why: str) -> None:
        """Refuses a peer for which there is no thread; its client connects again later."""
        line = None if self._address.kind == "tls" else sock
        refuse_busy(sock, line, Busy(f"{why} Come again in a moment.", _RETRY_S))
        sock.close()

    def _is_stopped(self, *sockets: socket.socket, timeout_s: float | None = None) -> bool:
        """Waits for input on a socket, for `close`, or for the timeout; True after `close`."""
        with selectors.PollSelector() as selector:  # needs no file descriptor: there may be none
            for sock in (self._stopped, *sockets):
                selector.register(sock, selectors.EVENT_READ)
            return any(key.fileobj is self._stopped for key, _ in selector.select(timeout_s))

    def _handle(self, sock: socket.socket) -> None:
        peer, place = _peer_of(sock)
        with ExitStack() as end:
            sockets = end.enter_context(ExitStack())  # closed last: first it is logged why
            sockets.callback(self._clients.discard, sock)
            sockets.callback(sock.close)
            end.enter_context(self._logging_failures(peer, place))
            admitted = self._authenticator.admit(sock)
            sockets.callback(admitted.stream.close)
            if admitted.account is not None:
                log_event("client_admitted", peer=peer, principal=admitted.principal)
            end.enter_context(self._connected_accounts.present(sock, admitted.account))
            self._serve_client(admitted, end)

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        """Serves an authenticated client.

        Args:
            admitted: the client.
            end: closed when this returns, and the connection with it; `end.pop_all()` is for who
                closes it later.
        """
        raise NotImplementedError

    @contextmanager
    def _logging_failures(self, peer: str, place: str) -> Iterator[None]:
        """Logs what goes wrong with a client, which does not affect others."""
        try:
            yield
        except JaxdError as error:
            self._log_refusal("client_refused", peer, place, str(error))
        except (EOFError, OSError) as error:
            self._log_refusal("client_left_early", peer, place, str(error))
        except Exception:  # noqa: BLE001  whatever it is
            log_event("client_failed", peer=peer)

    def _log_refusal(
        self,
        event: Literal["client_refused", "client_left_early"],
        peer: str,
        place: str,
        reason: str,
    ) -> None:
        """Logs at a limited rate, so that a peer cannot fill the disk."""
        skipped = self._log_limiter.acquire(place)
        if skipped is not None:
            log_event(event, peer=peer, reason=reason, not_logged=skipped or None)


class RefusingAcceptor(Acceptor):
    """Accepts and authenticates clients while there is no worker, and tells each of them why.

    Args:
        listener: that of the host; it stays open.
        authenticator: decides who is told.
        accounts: of the server.
        why: what they are told.
    """

    def __init__(
        self,
        listener: Listener,
        authenticator: Authenticator,
        accounts: Accounts,
        why: Callable[[], str],
    ) -> None:
        own, connected = listener.socket.dup(), ConnectedAccounts(accounts)
        super().__init__(own, listener.address, authenticator, _MAX_REFUSED, connected)
        authenticator.silence_s = FIRST_BYTES_S
        self._why = why

    def start_in_thread(self) -> None:
        """As `Acceptor`, but the host does not end with that thread."""
        start_daemon("jaxd-refuse", self._run)

    def close(self) -> None:
        """Accepts nobody any more; who has said nothing so far is disconnected."""
        super().close()
        for sock in list(self._clients):
            with suppress(OSError):  # its own thread closes it
                sock.shutdown(socket.SHUT_RD)

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        if admitted.client_identity is not None:  # a stock client understands nothing
            refuse_client(admitted.stream, ServerStartFailed(self._why()))


def _reserve_descriptors(sock: socket.socket) -> None:
    """Checks that one more client leaves enough file descriptors for the connected ones.

    Raises:
        OSError: when it does not.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    probe = os.dup(sock.fileno())  # the lowest free number
    os.close(probe)
    if probe >= limit - min(_RESERVED_FILES, limit // 4):
        raise OSError(errno.EMFILE, f"{probe} of {limit} files are open; the rest is kept")


def _peer_of(sock: socket.socket) -> tuple[str, str]:
    """The name of a peer in the log, and the key of its rate limit."""
    try:
        name = sock.getpeername()
    except OSError:
        return "gone", "gone"
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else "unix", rate_limit_key(name)
