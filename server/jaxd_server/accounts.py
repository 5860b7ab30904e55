"""Who may come over TCP and TLS at this moment: tokens are read again whenever they change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final

from jaxd_protocol.accounts import MOST_ACCOUNTS, Account, token_files
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.tokens import read_token_file
from jaxd_server.logs import log_event
from jaxd_server.options import ServerOptions

__all__ = ["Accounts"]

_UNSETTLED_NS: Final = 2_000_000_000
"""What was changed so short a time ago may change again and keep its date."""

_State = tuple[int, ...]
_Found = Account | str
"""An account, or why there is none."""


class Accounts:
    """The accounts of a server. Thread-safe.

    What cannot be read lets nobody in: a file that others can read, or that is empty, is passed
    over with a line in the log, and so is the second one with the same token.

    Args:
        options: where the tokens are.

    Raises:
        ConfigurationError: when the file of the token without a name is not usable.
    """

    def __init__(self, options: ServerOptions) -> None:
        token = options.read_token()
        self._given = Account.unnamed(token) if token and options.token_file is None else None
        self._file = options.token_file
        self._folder = options.token_folder
        self._lock = threading.Lock()  # guards all below; files are read under it, so that of two
        # handshakes at once neither goes by an older state than the other
        self._read: dict[str, tuple[_State, _Found]] = {}
        self._complaints: Mapping[str, str] = {}
        self._current: tuple[Account, ...] = self._look()
        self._glanced_at: object = None
        self._has_news = False

    def now(self) -> tuple[Account, ...]:
        """All of them; what has changed on disk since the last time is read."""
        with self._lock:
            found = self._look()
            if found != self._current:
                _tell(self._current, found)
                self._current = found
                self._has_news = True
            return found

    def may_stay(self, account: Account) -> bool:
        """Whether an account is as it was when somebody came in with it."""
        return account in self._current

    def have_changed(self) -> bool:
        """Whether files may have changed since this was asked last; quick, to be asked often."""
        seen = [_state(place) for place in (self._file, self._folder) if place is not None]
        newest = max((state[1] for state in seen if state), default=0)
        is_settled = abs(time.time_ns() - newest) >= _UNSETTLED_NS
        if seen == self._glanced_at and is_settled and not self._has_news:
            return False
        self._glanced_at = seen
        self._has_news = False
        return True

    def _look(self) -> tuple[Account, ...]:
        """What the files say now."""
        complaints: dict[str, str] = {}
        by_token: dict[str, Account] = {}
        for what, found in self._found():
            if isinstance(found, str):
                complaints[what] = found
                continue
            first = by_token.setdefault(found.token, found)
            if first is not found:
                complaints[what] = f"it has the same token as {first.principal}"
        for what, reason in complaints.items() - self._complaints.items():
            log_event("account_ignored", level=logging.WARNING, account=what, reason=reason)
        self._complaints = complaints
        return tuple(by_token.values())

    def _found(self) -> Iterator[tuple[str, _Found]]:
        if self._given is not None:
            yield self._given.principal, self._given
        if self._file is not None:
            yield self._file, self._in_file(self._file, None, _state(self._file))
        if self._folder is None:
            return
        try:
            files = token_files(self._folder)
        except ConfigurationError as error:
            yield self._folder, str(error)
            return
        for path in self._read.keys() - {file.path for file in files} - {self._file}:
            del self._read[path]
        for file in files[:MOST_ACCOUNTS]:
            yield file.path, self._in_file(file.path, file.name, file.state)
        if len(files) > MOST_ACCOUNTS:
            yield self._folder, f"it has more than {MOST_ACCOUNTS} files; the last are left out"

    def _in_file(self, path: str, name: str | None, state: _State | None) -> _Found:
        """The account of a file, read again when it is another file than the last time."""
        known = self._read.get(path)
        if known is not None and known[0] == state:
            return known[1]
        found: _Found
        try:
            token = read_token_file(path)
            found = Account.unnamed(token) if name is None else Account.named(name, token)
        except ConfigurationError as error:
            found = str(error)
        if state is not None:
            self._read[path] = state, found
        return found


def _state(path: str) -> _State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)


def _tell(before: tuple[Account, ...], after: tuple[Account, ...]) -> None:
    """Logs what is new, gone, or has another token."""
    old = {account.principal: account for account in before}
    new = {account.principal: account for account in after}
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            log_event("account_revoked", principal=name)
        elif name not in old:
            log_event("account_added", principal=name)
        elif old[name] != new[name]:
            log_event("account_replaced", principal=name)
