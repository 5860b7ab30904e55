"""The open connections of accounts, so that those of revoked accounts can be closed."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from jaxd_protocol.errors import AuthenticationFailed
from jaxd_protocol.network.accounts import Account
from jaxd_server.auth.accounts import Accounts
from jaxd_server.runtime.logs import log_event

_SHARED_WORKER_WARNING: Final = (
    "they can run code in each other's answers. For people who do not trust each other, start the "
    "server with --worker-per-principal"
)


class ConnectedAccounts:
    """The open connections of accounts. Thread-safe.

    Args:
        accounts: those that are good now; None: nobody is ever shown out.
        forget: lets go of what a principal has on the server, who is not to come back.
        share: whether all of them are served by this process.
    """

    def __init__(
        self,
        accounts: Accounts | None = None,
        forget: Callable[[str], None] = lambda principal: None,
        *,
        share: bool = False,
    ) -> None:
        self._accounts = accounts
        self._forget = forget
        self._connections: dict[socket.socket, Account] = {}
        self._principals: set[str] = set()
        self._may_warn = share  # that they share it
        self._lock = threading.Lock()  # guards the three

    @contextmanager
    def present(self, sock: socket.socket, account: Account | None) -> Iterator[None]:
        """Within it, a connection is here; one without an account is not counted.

        Raises:
            AuthenticationFailed: when the account was taken away while its client came in.
        """
        if account is None:
            yield
            return
        with self._lock:
            self._connections[sock] = account
            self._principals.add(account.principal)
            together = sorted(self._principals) if self._may_warn else []
            self._may_warn = self._may_warn and len(together) < 2
        if len(together) > 1:
            log_event(
                "accounts_share_a_worker",
                level=logging.WARNING,
                accounts=together,
                means=_SHARED_WORKER_WARNING,
            )
        try:
            if not self._is_still_valid(account):  # asked when it is in the table: it is not missed
                raise AuthenticationFailed(f"{account.principal} was revoked while it came in.")
            yield
        finally:
            with self._lock:
                del self._connections[sock]

    def poll(self) -> None:
        """Closes connections whose account was revoked; to be called often."""
        if self._accounts is None or not self._accounts.poll_changed():
            return
        with self._lock:
            came_in = set(self._principals)
        gone = came_in - {account.principal for account in self._accounts.now()}
        for principal, connections in self._disconnect_revoked().items():
            log_event(
                "client_shown_out",
                level=logging.WARNING,
                principal=principal,
                connections=connections,
            )
        with self._lock:
            self._principals -= gone
        for principal in gone:
            self._forget(principal)

    def _is_still_valid(self, account: Account) -> bool:
        return self._accounts is None or self._accounts.is_still_valid(account)

    def _disconnect_revoked(self) -> Counter[str]:
        with self._lock:  # which also keeps the sockets from being closed, and their numbers reused
            gone = [pair for pair in self._connections.items() if not self._is_still_valid(pair[1])]
            for sock, _ in gone:
                with suppress(OSError):  # it has ended by itself
                    sock.shutdown(socket.SHUT_RDWR)
        return Counter(account.principal for _, account in gone)
