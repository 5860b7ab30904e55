"""Named tokens: a folder with one file for each person or machine that may use a server.

The name of the file is the name of the account, its content is the token. To remove an account,
remove its file: no other account needs a new token, and no server has to be restarted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.tokens import config_dir, write_token_file

MAX_ACCOUNTS: Final = 1000
"""In one folder. A server compares each proof with every token, so that none is looked up."""

UNNAMED: Final = "token"
"""The principal of the holders of the one token that has no name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Account:
    """An account that may connect over TCP or TLS.

    Attributes:
        principal: its name in the log and the status.
        token: its secret; never shown in a repr.
    """

    principal: str
    token: str = field(repr=False)

    @classmethod
    def named(cls, name: str, token: str) -> Account:
        """The account of a file in the folder."""
        return cls(f"account:{name}", token)

    @classmethod
    def unnamed(cls, token: str) -> Account:
        """The account of the one token that has no name."""
        return cls(UNNAMED, token)


class TokenFile(NamedTuple):
    """A file in the folder, as it is now.

    Attributes:
        name: of the account.
        path: of the file.
        made_at: when it was written, in seconds since the epoch.
        state: see `file_state`.
    """

    name: str
    path: str
    made_at: float
    state: tuple[int, ...]


_STATE: Final = attrgetter(
    *("st_dev", "st_ino", "st_mtime_ns", "st_ctime_ns", "st_size", "st_mode", "st_uid")
)


def file_state(status: os.stat_result) -> tuple[int, ...]:
    """A value that changes when a file is replaced or written to, or its permissions change.

    Of the two times, the second cannot be set by the file's owner.
    """
    state: tuple[int, ...] = _STATE(status)
    return state


def default_token_dir() -> str:
    """Where `jaxd token --name` writes, and where servers look by default."""
    return os.path.join(config_dir(), "tokens")


def token_files(folder: str) -> list[TokenFile]:
    """The accounts in a folder, by name; other files are skipped. Empty where there is no folder.

    Raises:
        ConfigurationError: when others than its owner may put files there, or it cannot be read.
    """
    try:
        status = os.stat(folder)
        if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
            raise ConfigurationError(
                f"others can put tokens of theirs into {folder}. It must be a folder of yours that "
                f"nobody else can change: chmod 700 {folder}"
            )
        return sorted(_files(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the folder of tokens {folder}: {error.strerror}. Make it a folder that "
            "you can read, or name another one with --token-dir."
        ) from error


def _files(folder: str) -> Iterator[TokenFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                continue
            try:
                found = entry.stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            if stat.S_ISREG(found.st_mode):
                yield TokenFile(entry.name, entry.path, found.st_mtime, file_state(found))


def add_account(name: str, folder: str, *, replace: bool = False) -> tuple[str, str]:
    """Makes a token for a name; returns the path of its file, and the token.

    Raises:
        ConfigurationError: when the name is invalid, has a token that is not to be replaced, when
            there are too many accounts, or when the file cannot be written.
    """
    path = _path(name, folder)
    known = {file.name for file in token_files(folder)}
    if name not in known and len(known) >= MAX_ACCOUNTS:
        raise ConfigurationError(
            f"{folder} has {len(known)} accounts, and a server takes {MAX_ACCOUNTS}. Remove some "
            "with `jaxd token --revoke NAME`, or use another folder with --token-dir."
        )
    return path, write_token_file(path, replace=replace and name in known)


def remove_account(name: str, folder: str) -> None:
    """Removes the token of a name.

    Raises:
        ConfigurationError: when there is none, or it cannot be removed.
    """
    path = _path(name, folder)
    try:
        os.unlink(path)
    except FileNotFoundError as error:
        known = ", ".join(file.name for file in token_files(folder)) or "none"
        raise ConfigurationError(
            f"there is no account {name!r} in {folder} (there are: {known}). See `jaxd token "
            "--list`."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"cannot remove {path}: {error.strerror}. Until it is gone the account remains."
        ) from error


def _path(name: str, folder: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a name for an account. Use up to 64 letters, digits and . _ @ + -, "
            "beginning with a letter or digit."
        )
    return os.path.join(folder, name)
