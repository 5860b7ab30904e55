"""Assigns the uids of `--worker-uids` to accounts, persistently: none is reused for another."""

from __future__ import annotations

import grp
import json
import pwd
from collections.abc import Iterable, Mapping
from typing import Final

from jaxd_protocol.errors import ConfigurationError, LimitExceeded
from jaxd_server.processes.tenants.os_users import living_processes
from jaxd_server.runtime.logs import replace_file

_TABLE: Final = "users.json"
_ENDER: Final = "jaxd"
"""The key in the table for the uid of `ender`; no principal has this name."""


class UidTable:
    """Assigns each account a uid, the same one after a restart. For one thread.

    Args:
        folder: of the file of the table; None: it is kept in memory only.
        uids: the first and the last uid.

    Attributes:
        ender: a uid that belongs to no account; processes that end those of others run as it.

    Raises:
        ConfigurationError: when the table cannot be read or written, or no uid is left.
    """

    def __init__(self, folder: str | None, uids: tuple[int, int]) -> None:
        self._folder = folder
        self._uids = uids
        self._table = self._load()
        self.ender = self._ender_uid()

    def of(self, principal: str) -> int:
        """The uid of an account, a new one if it has none.

        Raises:
            LimitExceeded: when no uid is left.
            ConfigurationError: when its uid cannot be used any more, or a new one not be stored.
        """
        known = self._table.get(principal)
        if known is None:
            first, last = self._uids
            return self._assign(principal, range(first, last + 1))
        if not self._is_in_range(known):
            raise ConfigurationError(
                f"{principal} has uid {known}, which is not among --worker-uids. The administrator "
                f"of the server can restore the earlier range, or remove {self._folder}."
            )
        name = name_of_user(known)
        if name is not None:
            raise ConfigurationError(
                f"{principal} has uid {known}, which now belongs to user {name} as well. The "
                f"administrator of the server can give {name} another uid, or remove the line of "
                f"{principal} from {self._folder}/{_TABLE} and start the server again."
            )
        return known

    def known(self) -> Mapping[str, int]:
        """The accounts that have a uid, with their uids."""
        return {who: uid for who, uid in self._table.items() if who != _ENDER}

    def _ender_uid(self) -> int:
        known = self._table.get(_ENDER)
        if known is not None and self._is_in_range(known) and name_of_user(known) is None:
            return known
        first, last = self._uids
        try:  # the last free one, so that it is the same without a file
            return self._assign(_ENDER, range(last, first - 1, -1))
        except LimitExceeded as error:
            raise ConfigurationError(
                f"the server needs one of --worker-uids for itself, and all from {first} to {last} "
                "are taken. Extend the range."
            ) from error

    def _is_in_range(self, uid: int) -> bool:
        return self._uids[0] <= uid <= self._uids[1]

    def _assign(self, who: str, numbers: Iterable[int]) -> int:
        taken = {uid for other, uid in self._table.items() if other != who}
        taken |= living_processes().keys()
        for uid in numbers:
            if uid not in taken and name_of_user(uid) is None and not _is_group(uid):
                table = {**self._table, who: uid}
                self._save(table)
                self._table = table  # once it is stored: it must not be assigned again
                return uid
        raise LimitExceeded(
            f"all uids from {self._uids[0]} to {self._uids[1]} are taken, so there is none for a "
            "worker of yours. The administrator of the server can extend --worker-uids."
        )

    def _load(self) -> dict[str, int]:
        if self._folder is None:
            return {}
        path = f"{self._folder}/{_TABLE}"
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            return {str(who): int(uid) for who, uid in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"cannot read {path}, the table of uids and accounts: {error}. "
                f"Correct it, or remove the folder {self._folder}."
            ) from error

    def _save(self, table: Mapping[str, int]) -> None:
        if self._folder is None:
            return
        path = f"{self._folder}/{_TABLE}"
        try:
            replace_file(path, json.dumps(table, indent=1))
        except OSError as error:
            raise ConfigurationError(
                f"cannot write {path}: {error.strerror}. Free some room, and connect again."
            ) from error


def name_of_user(uid: int) -> str | None:
    """The name of the user with a uid; None: the uid is unused."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _is_group(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True
