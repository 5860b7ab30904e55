"""Where each principal's worker lives: below which folder, and as which user of this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pwd
import re
import subprocess
import sys
from contextlib import suppress
from typing import Final

from jaxd_protocol.errors import ConfigurationError, LimitExceeded
from jaxd_server.logs import log_event
from jaxd_server.options import SAME_USER, ServerOptions
from jaxd_server.store.directory import cache_root, make_trusted
from jaxd_server.tenant import Tenant, User

__all__ = ["Tenants"]

_FOLDER: Final = "principals"
_TABLE: Final = "users.json"
_SYSTEM_CACHE: Final = "/var/cache/jaxd"
"""Where root's server keeps what others own: nobody else can enter root's home."""

_END_ALL: Final = """
import os, sys
uid, gid = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
if uid and os.getresuid() == (uid, uid, uid):
    try:
        os.kill(-1, 9)
    except ProcessLookupError:  # there are none
        pass
"""
"""Becomes the user, and ends all that this may end: at once, however fast they make others."""

_END_S: Final = 10.0

_USER: Final = re.compile(r"uid:(\d+)")
_NOBODYS_GROUP: Final = 65534


class Tenants:
    """Assigns folders and users, the same ones after a restart. For one thread.

    Args:
        options: what the server was told.
        is_root: whether it may start processes of other users.

    Raises:
        ConfigurationError: when the folders cannot be made, or their owners could not enter them.
    """

    def __init__(self, options: ServerOptions, *, is_root: bool | None = None) -> None:
        may = os.geteuid() == 0 if is_root is None else is_root
        self._is_root = may and options.worker_uids != SAME_USER
        self._uids = options.worker_uids if self._is_root else None
        self._root = self._made(options)
        self._assigned = self._load()
        self._here: dict[str, Tenant] = {}

    def of(self, principal: str) -> Tenant:
        """Whose folder and user are whose; makes the folder.

        Raises:
            LimitExceeded: when there is no user left for an account.
            ConfigurationError: when the folder cannot be made.
        """
        user = self._user_of(principal)
        folder = "none" if self._root is None else f"{self._root}/{_name_of(principal)}"
        home = folder if self._root is not None else os.sep
        if user is not None and not user.home:
            user = User(user.uid, user.gid, user.groups, user.name, home)
        if self._root is not None:
            _make_own(folder, user)
        tenant = self._here[principal] = Tenant(principal, folder, user)
        return tenant

    def end_processes(self, tenant: Tenant) -> None:
        """Kills what runs as the user of a tenant, where that is nobody else's.

        So also what its code has started and left behind. Of those who can log in here, the
        processes are their own.
        """
        user = tenant.user
        if user is None or self._assigned.get(tenant.principal) != user.uid:
            return
        words = [sys.executable, "-I", "-S", "-c", _END_ALL, str(user.uid), str(user.gid)]
        try:
            subprocess.run(words, check=True, timeout=_END_S)  # noqa: S603  our own interpreter
        except (OSError, subprocess.SubprocessError) as error:
            log_event("processes_not_ended", level=logging.WARNING, user=user.uid, why=str(error))

    def end_all_processes(self) -> None:
        """As `end_processes`, of all who were here and have any."""
        users = _users_of_processes()
        for tenant in self._here.values():
            if tenant.user is not None and tenant.user.uid in users:
                self.end_processes(tenant)

    def _user_of(self, principal: str) -> User | None:
        if not self._is_root:
            return None
        match = _USER.fullmatch(principal)
        if match:
            return None if int(match[1]) == 0 else _user(int(match[1]))
        return None if self._uids is None else _own_user(self._number_of(principal, self._uids))

    def _number_of(self, principal: str, uids: tuple[int, int]) -> int:
        known = self._assigned.get(principal)
        if known is not None and not uids[0] <= known <= uids[1]:
            raise ConfigurationError(
                f"{principal} is user {known} here, which is not among --worker-uids. Whoever runs "
                f"the server can give it the numbers that it had, or remove {self._root}."
            )
        if known is not None:
            return known
        taken = set(self._assigned.values())
        for uid in range(uids[0], uids[1] + 1):
            if uid not in taken and not _has_name(uid):
                self._assigned[principal] = uid
                self._save()
                return uid
        raise LimitExceeded(
            f"all users from {uids[0]} to {uids[1]} are taken, so there is none for a worker of "
            "yours. Whoever runs the server can give it more with --worker-uids."
        )

    @property
    def share_user(self) -> bool:
        """Whether the workers of all run as one user of the machine."""
        return not self._is_root

    # on disk --------------------------------------------------------------------------------------

    def _made(self, options: ServerOptions) -> str | None:
        given = options.cache_dir or os.environ.get("JAXD_CACHE_DIR")
        root = cache_root(given or (_SYSTEM_CACHE if self._is_root else None))
        if root is None:
            return None
        real = make_trusted(root)
        folder = f"{real}/{_FOLDER}"
        try:
            for path in (real, folder):
                if not os.path.lexists(path):
                    os.mkdir(path, 0o700)
                if self._is_root:
                    mode = os.lstat(path).st_mode & 0o7777
                    os.chmod(path, mode | 0o011)  # noqa: S103  entered, and not even listed
        except OSError as error:
            raise ConfigurationError(
                f"cannot make the folder {folder}: {error.strerror}. Choose another --cache-dir."
            ) from error
        if self._is_root:
            _prove_enterable(folder)
        return make_trusted(folder)

    def _load(self) -> dict[str, int]:
        if self._root is None or self._uids is None:
            return {}
        try:
            with open(f"{self._root}/{_TABLE}", encoding="utf-8") as file:
                found = json.load(file)
            return {str(who): int(uid) for who, uid in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"cannot read {self._root}/{_TABLE}, where it stands which user is whose: {error}. "
                f"Correct it, or remove the folder {self._root}."
            ) from error

    def _save(self) -> None:
        if self._root is None:
            return
        path = f"{self._root}/{_TABLE}"
        try:
            with open(
                os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                "w",
                encoding="utf-8",
            ) as file:
                json.dump(self._assigned, file, indent=1)
            os.replace(f"{path}.new", path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write {path}: {error.strerror}. Free some room, and connect again."
            ) from error


def _name_of(principal: str) -> str:
    """A name for a folder that two principals never share."""
    digest = hashlib.blake2b(principal.encode(), digest_size=6).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', principal)[:40]}-{digest}"


def _make_own(folder: str, user: User | None) -> None:
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            if user is not None:
                os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the folder {folder}: {error.strerror}. Free some room, or choose another "
            "--cache-dir."
        ) from error
    owner = os.lstat(folder).st_uid
    if user is None or owner == user.uid:
        return
    if owner == os.geteuid() and not os.listdir(folder):  # we ended before it was given away
        os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    else:  # its worker keeps nothing then, and says so
        log_event("cache_of_another_user", folder=folder, owner=owner, user=user.uid)


def _prove_enterable(folder: str) -> None:
    path = folder
    while path != os.path.dirname(path):
        if not os.stat(path).st_mode & 0o001:
            raise ConfigurationError(
                f"the users that workers run as cannot enter {path}, and so not {folder}, where "
                f"their programs are kept. Choose another --cache-dir, or run: chmod o+x {path}"
            )
        path = os.path.dirname(path)


def _user(uid: int) -> User:
    """A user of the machine as it would log in."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # in a container
        return User(uid, _NOBODYS_GROUP, (), str(uid), "")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)


def _own_user(uid: int) -> User:
    """One that is nobody else; so is the group of its number."""
    return User(uid, uid, (), str(uid), "")


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _users_of_processes() -> set[int]:
    users = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            users.add(os.stat(f"/proc/{name}").st_uid)
    return users
