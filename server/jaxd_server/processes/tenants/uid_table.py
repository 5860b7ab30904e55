"""Assigns the uids of `--worker-uids` to accounts, persistently: none is reused for another."""

from __future__ import annotations

import grp
import json
import os
import pwd
from collections.abc import Iterable, Mapping
from typing import Final

from jaxd_protocol.errors import ConfigurationError, LimitExceeded
from jaxd_server.processes.tenants.os_users import living_processes

_TABLE: Final = "users.json"
_ENDER: Final = "jaxd"
"""The key in the table for the uid of `ender`; no principal has this name."""


class UidTable:
    """Assigns each account a uid, the same one after a restart. For one thread.

    Args:
        folder: where the table is stored; None: nowhere.
        uids: the first and the last number.

    Attributes:
        ender: the uid that belongs to no account: processes that end those of others run as it.

    Raises:
        ConfigurationError: when the table cannot be read or written, or there is no number left.
    """

    def __init__(self, folder: str | None, uids: tuple[int, int]) -> None:
        self._folder = folder
        self._uids = uids
        self._table = self._load()
        self.ender = self._ender_uid()

    def of(self, principal: str) -> int:
        """The number of an account, a new one when it has none.

        Raises:
            LimitExceeded: when none is left.
            ConfigurationError: when the one that it has cannot be used any more, or a new one
                cannot be written down.
        """
        known = self._table.get(principal)
        if known is None:
            first, last = self._uids
            return self._give(principal, range(first, last + 1))
        if not self._is_in_range(known):
            raise ConfigurationError(
                f"{principal} is user {known} here, which is not among --worker-uids. Whoever runs "
                f"the server can give it the numbers that it had, or remove {self._folder}."
            )
        name = name_of_user(known)
        if name is not None:
            raise ConfigurationError(
                f"{principal} is user {known} here, and so is {name} of this machine by now. "
                f"Whoever runs the server can give {name} another number, or take the line of "
                f"{principal} out of {self._folder}/{_TABLE} and start the server again."
            )
        return known

    def known(self) -> Mapping[str, int]:
        """The accounts that have one, and which."""
        return {who: uid for who, uid in self._table.items() if who != _ENDER}

    def _ender_uid(self) -> int:
        known = self._table.get(_ENDER)
        if known is not None and self._is_in_range(known) and name_of_user(known) is None:
            return known
        first, last = self._uids
        try:  # the last one, so that it is the same one where nothing is written down
            return self._give(_ENDER, range(last, first - 1, -1))
        except LimitExceeded as error:
            raise ConfigurationError(
                f"the server needs one of --worker-uids for itself, and all from {first} to {last} "
                "are taken. Give it more."
            ) from error

    def _is_in_range(self, uid: int) -> bool:
        return self._uids[0] <= uid <= self._uids[1]

    def _give(self, who: str, numbers: Iterable[int]) -> int:
        taken = {uid for other, uid in self._table.items() if other != who}
        taken |= living_processes().keys()
        for uid in numbers:
            if uid not in taken and name_of_user(uid) is None and not _is_group(uid):
                table = {**self._table, who: uid}
                self._save(table)
                self._table = table  # not before: what is not written down is given again
                return uid
        raise LimitExceeded(
            f"all users from {self._uids[0]} to {self._uids[1]} are taken, so there is none for a "
            "worker of yours. Whoever runs the server can give it more with --worker-uids."
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
                f"cannot read {path}, where it stands which user is whose: {error}. "
                f"Correct it, or remove the folder {self._folder}."
            ) from error

    def _save(self, table: Mapping[str, int]) -> None:
        if self._folder is None:
            return
        path = f"{self._folder}/{_TABLE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            with open(os.open(f"{path}.new", flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(table, file, indent=1)
                file.flush()
                os.fsync(file.fileno())  # else it may be empty after a power cut
            os.replace(f"{path}.new", path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write {path}: {error.strerror}. Free some room, and connect again."
            ) from error


def name_of_user(uid: int) -> str | None:
    """The name of a user of this machine; None: the uid is unused."""
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
