"""The accounts whose tokens are valid over TCP and TLS, and their open connections.

Token files are read again when they change; connections of revoked accounts are closed.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError
from jaxd_protocol.network.accounts import (
    MAX_ACCOUNTS,
    Account,
    TokenFile,
    file_state,
    token_files,
)
from jaxd_protocol.network.tokens import read_token_file
from jaxd_server.config.options import ServerOptions
from jaxd_server.runtime.logs import log_event

_REREAD_AFTER_S: Final = 1.0
"""Token files are read again after so long although their state is unchanged.

A file can be rewritten without a change of its state: within one tick of the file system's clock,
or on a network file system.
"""

_RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are no fault of the file: this process lacks memory or file descriptors."""

_State = tuple[int, ...]
_Found = Account | str
"""The account in a file, or why it gives none."""


class Accounts:
    """The accounts of a server. Thread-safe.

    A file that cannot be used gives no account: one that others can read, or that is empty, is
    ignored with a line in the log, and so is the second one with the same token.

    Args:
        options: where the tokens are.
        clock: seconds that only grow.

    Raises:
        ConfigurationError: when the file of the token without a name is not usable.
    """

    def __init__(self, options: ServerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        token = options.read_token()
        self._reported = Account.unnamed(token) if token and options.token_file is None else None
        self._file = options.token_file
        self._folder = options.token_folder
        # guards all below; files are read under it, so that of two simultaneous handshakes neither
        # uses an older state than the other
        self._lock = threading.Lock()
        self._read: dict[str, tuple[_State, _Found]] = {}
        self._complaints: Mapping[str, str] = {}
        self._current: tuple[Account, ...] = self._load()
        self._has_news = True  # until the first poll
        self._clock = clock
        self._read_at = clock()

    def now(self) -> tuple[Account, ...]:
        """The valid accounts; reads the files whose state has changed since the last call."""
        with self._lock:
            return self._set_current(self._load())

    def is_still_valid(self, account: Account) -> bool:
        """Whether an account is unchanged since a client authenticated with it."""
        return account in self._current

    def poll_changed(self) -> bool:
        """Whether the accounts have changed since the last poll; to be called often.

        Once a second it reads every file, whatever its state is.
        """
        with self._lock:
            is_due = self._clock() - self._read_at >= _REREAD_AFTER_S
            if is_due:
                self._read_at = self._clock()
            self._set_current(self._load(anew=is_due))
            has_news, self._has_news = self._has_news, False
            return has_news

    def _set_current(self, found: tuple[Account, ...]) -> tuple[Account, ...]:
        """Makes these the current accounts. The lock is held."""
        if found != self._current:
            _log_changes(self._current, found)
            self._current = found
            self._has_news = True
        return found

    def _load(self, *, anew: bool = False) -> tuple[Account, ...]:
        """The accounts of all files; `anew`: reads also those that seem unchanged."""
        complaints: dict[str, str] = {}
        by_token: dict[str, Account] = {}
        for what, found in self._found(anew=anew):
            if isinstance(found, str):
                complaints[what] = found
                continue
            first = by_token.setdefault(found.token, found)
            if first is not found:
                complaints[what] = f"it has the same token as {first.principal}"
        for what, reason in complaints.items() - self._complaints.items():
            log_event("account_ignored", account=what, reason=reason)
        self._complaints = complaints
        return tuple(by_token.values())

    def _found(self, *, anew: bool) -> Iterator[tuple[str, _Found]]:
        if self._reported is not None:
            yield self._reported.principal, self._reported
        if self._file is not None:
            state = _state(self._file)
            yield self._file, self._in_file(self._file, None, state, anew=anew)
        if self._folder is not None:
            yield from self._in_folder(self._folder, anew=anew)

    def _in_folder(self, folder: str, *, anew: bool) -> Iterator[tuple[str, _Found]]:
        try:
            files = self._files(folder)
        except ConfigurationError as error:
            yield folder, str(error)
            return
        for path in self._read.keys() - {file.path for file in files} - {self._file}:
            del self._read[path]
        for file in files[:MAX_ACCOUNTS]:
            yield file.path, self._in_file(file.path, file.name, file.state, anew=anew)
        if len(files) > MAX_ACCOUNTS:
            yield folder, f"it has more than {MAX_ACCOUNTS} files; the last are left out"

    def _files(self, folder: str) -> list[TokenFile]:
        """The token files of the folder; if it cannot be listed, known ones that still exist."""
        try:
            return token_files(folder)
        except ConfigurationError as error:
            if not _is_resource_error(error):
                raise
        known = [(path, _state(path)) for path in self._read.keys() - {self._file}]
        return sorted(
            TokenFile(os.path.basename(path), path, 0.0, state) for path, state in known if state
        )

    def _in_file(self, path: str, name: str | None, state: _State | None, *, anew: bool) -> _Found:
        """The account of a file, which is read when its state differs from the last time.

        While this process can open no file, a file in the same state counts as unchanged:
        otherwise a program that opens too many files would disconnect all clients.
        """
        known = self._read.get(path)
        is_unchanged = known is not None and known[0] == state
        if known is not None and is_unchanged and not anew:
            return known[1]
        found: _Found
        try:
            token = read_token_file(path)
            found = Account.unnamed(token) if name is None else Account.named(name, token)
        except ConfigurationError as error:
            if known is not None and is_unchanged and _is_resource_error(error):
                return known[1]
            found = str(error)
        if state is not None:
            self._read[path] = state, found
        return found


def _state(path: str) -> _State | None:
    try:
        return file_state(os.stat(path))
    except OSError:
        return None


def _is_resource_error(error: ConfigurationError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _RESOURCE_ERRNOS


def _log_changes(before: tuple[Account, ...], after: tuple[Account, ...]) -> None:
    """Logs accounts that were added, revoked, or have another token."""
    old = {account.principal: account for account in before}
    new = {account.principal: account for account in after}
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            log_event("account_revoked", principal=name)
        elif name not in old:
            log_event("account_added", principal=name)
        elif old[name] != new[name]:
            log_event("account_replaced", principal=name)


_SHARED_WORKER_WARNING: Final = (
    "they can run code in each other's answers. For people who do not trust each other, start the "
    "server with --worker-per-principal"
)


class ConnectedAccounts:
    """The open connections of accounts. Thread-safe.

    Args:
        accounts: the valid ones.
        forget: releases what a revoked principal has on the server.
        share: whether this process serves all of them.
    """

    def __init__(
        self,
        accounts: Accounts,
        forget: Callable[[str], None] = lambda principal: None,
        *,
        share: bool = False,
    ) -> None:
        self._accounts = accounts
        self._forget = forget
        self._connections: dict[socket.socket, Account] = {}
        self._principals: set[str] = set()
        self._may_warn = share  # that several accounts share this process
        self._lock = threading.Lock()  # guards the three

    @contextmanager
    def present(self, sock: socket.socket, account: Account | None) -> Iterator[None]:
        """Registers a connection for the block; one without an account is not counted.

        Raises:
            AuthenticationFailed: when the account was revoked during the handshake.
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
                accounts=together,
                means=_SHARED_WORKER_WARNING,
            )
        try:
            if not self._accounts.is_still_valid(account):  # once registered: no change is missed
                raise AuthenticationFailed(f"{account.principal} was revoked while it connected.")
            yield
        finally:
            with self._lock:
                del self._connections[sock]

    def poll(self) -> None:
        """Closes connections whose account was revoked; to be called often."""
        if not self._accounts.poll_changed():
            return
        with self._lock:
            known = set(self._principals)
        gone = known - {account.principal for account in self._accounts.now()}
        for principal, connections in self._disconnect_revoked().items():
            log_event(
                "client_shown_out",
                principal=principal,
                connections=connections,
            )
        with self._lock:
            self._principals -= gone
        for principal in gone:
            self._forget(principal)

    def _disconnect_revoked(self) -> Counter[str]:
        is_still_valid = self._accounts.is_still_valid
        with self._lock:  # no socket is closed, and its descriptor reused, while it is held
            gone = [pair for pair in self._connections.items() if not is_still_valid(pair[1])]
            for sock, _ in gone:
                with suppress(OSError):  # it was closed already
                    sock.shutdown(socket.SHUT_RDWR)
        return Counter(account.principal for _, account in gone)
