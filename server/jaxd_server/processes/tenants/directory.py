"""Assigns each principal a folder and a user of this machine; cleans up after accounts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import re
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.local_server import cache_root
from jaxd_server.cache.directory import make_trusted
from jaxd_server.config.argument_types import SAME_USER
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.tenant_settings import Tenant, User
from jaxd_server.processes.tenants.os_users import (
    end_processes,
    folders_of,
    living_processes,
    remove_folder,
)
from jaxd_server.processes.tenants.uid_table import UidTable, name_of_user
from jaxd_server.runtime.logs import claim_folder, log_event

_FOLDER: Final = "principals"
_SYSTEM_CACHE: Final = "/var/cache/jaxd"
"""The cache folder of root's server, whose users cannot enter root's home."""

_USER: Final = re.compile(r"uid:(\d+)")
_NOBODYS_GROUP: Final = 65534


class TenantDirectory:
    """Assigns folders and users, the same ones after a restart. For one thread.

    Args:
        options: of the server.
        is_root: whether it may start processes of other users.
        claims: whether to claim the table of uids for this process, until it ends.

    Attributes:
        share_user: whether all workers run as one user of the machine.

    Raises:
        ConfigurationError: when the folders cannot be made, or their owners could not enter them,
            or another server has claimed the table of uids.
    """

    def __init__(
        self, options: ServerOptions, *, is_root: bool | None = None, claims: bool = False
    ) -> None:
        self._is_root = _has_users(options, is_root)
        self.share_user = not self._is_root
        self._root = self._made(options)
        uids = options.worker_uids if self._is_root else None
        folder = self._root if claims and uids is not None else None
        if folder is not None and claim_folder(folder) is None:  # else until this process ends
            raise ConfigurationError(
                f"another server has its programs and the table of its uids in {folder}. "
                "Choose another --cache-dir, and other --worker-uids, for this one."
            )
        self._numbers = None if uids is None else UidTable(self._root, uids)
        self._in_use: dict[str, str] = {}

    def of(self, principal: str, token: str | None = None) -> Tenant:
        """The folder and the user of a principal; makes the folder.

        If the uid belongs to the account alone, each token has another folder: an earlier holder
        of the account may have left code there.

        Args:
            principal: its name.
            token: distinguishes the token of its account from others.

        Raises:
            LimitExceeded: when there is no uid left for an account.
            ConfigurationError: when the folder cannot be made.
        """
        user = self._user_of(principal)
        name = _name_of(principal, token if self.has_own_uid(principal) else None)
        folder = "none" if self._root is None else f"{self._root}/{name}"
        home = folder if self._root is not None else os.sep
        if user is not None and not user.home:
            user = User(user.uid, user.gid, user.groups, user.name, home)
        if self._root is not None:
            self._in_use[principal] = folder  # before it exists, so that it is never removed
            _make_own(folder, user)
        return Tenant(principal, folder, user)

    def has_own_uid(self, principal: str) -> bool:
        """Whether a uid belongs to it alone, as to an account that has connected."""
        return principal in self._own_uids()

    def _own_uids(self) -> Mapping[str, int]:
        """The principals whose uid belongs to them alone."""
        return {} if self._numbers is None else self._numbers.known()

    def end_processes(self, principal: str) -> None:
        """Kills all processes with the uid of a principal, if it belongs to the principal alone.

        This includes processes that its code has started. Those of users who can log in are left
        alone. Slow; may be called by any thread.
        """
        uid = self._own_uids().get(principal)
        if self._numbers is None or uid is None:
            return
        name = name_of_user(uid)  # of a user who got the uid later
        ender = self._numbers.ender
        why = end_processes(uid, ender) if name is None else f"they belong to user {name} now."
        if why:
            log_event("processes_not_ended", principal=principal, user=uid, why=why)

    def forget(self, principal: str) -> None:
        """Marks the folder of an account as no longer in use."""
        self._in_use.pop(principal, None)

    def remove_old_folders(self, principal: str) -> None:
        """Removes the unused folders of an account, if its uid belongs to it alone.

        Slow; may be called by any thread. Folders that remain are tried again another time.
        """
        uid = self._own_uids().get(principal)
        if self._numbers is None or self._root is None or uid is None:
            return
        for folder, owner in folders_of(self._root).items():
            if owner != uid or folder == self._in_use.get(principal):
                continue
            why = remove_folder(folder, uid, self._numbers.ender)
            if why:
                log_event("folder_not_removed", folder=folder, why=why)

    def with_processes_or_folders(self) -> set[str]:
        """The principals with processes or folders, of those whose uid belongs to them alone."""
        folders = {} if self._root is None else folders_of(self._root)
        users = living_processes().keys() | set(folders.values())
        return {who for who, uid in self._own_uids().items() if uid in users}

    def end_all_processes(self) -> None:
        """Calls `end_processes` for all principals."""
        users = living_processes()
        for principal in [who for who, uid in self._own_uids().items() if uid in users]:
            self.end_processes(principal)

    def _user_of(self, principal: str) -> User | None:
        if not self._is_root:
            return None
        match = _USER.fullmatch(principal)
        if match:
            return None if int(match[1]) == 0 else _user(int(match[1]))
        return None if self._numbers is None else _own_user(self._numbers.of(principal))

    # on disk --------------------------------------------------------------------------------------

    def _made(self, options: ServerOptions) -> str | None:
        root = tenants_root(options, is_root=self._is_root)
        if root is None:
            return None
        real = make_trusted(root)
        folder = f"{real}/{_FOLDER}"
        try:
            for path in (real, folder):
                self._make_folder(path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot make the folder {folder}: {error.strerror}. Choose another --cache-dir."
            ) from error
        if self._is_root:
            _check_enterable(folder)
        return make_trusted(folder)

    def _make_folder(self, path: str) -> None:
        """Makes a folder if it is missing; the users that workers run as may enter it."""
        if not os.path.lexists(path):
            os.mkdir(path, 0o700)
        if self._is_root:
            mode = os.lstat(path).st_mode & 0o7777
            os.chmod(path, mode | 0o011)  # noqa: S103  others may enter it, and not list it


def tenants_root(options: ServerOptions, *, is_root: bool | None = None) -> str | None:
    """The cache folder above those of the principals; None: nothing is kept.

    Args:
        options: of the server.
        is_root: as of `TenantDirectory`.
    """
    given = options.cache_dir or os.environ.get("JAXD_CACHE_DIR")
    return cache_root(given or (_SYSTEM_CACHE if _has_users(options, is_root) else None))


def _has_users(options: ServerOptions, is_root: bool | None) -> bool:
    """Whether workers run as different users."""
    may = os.geteuid() == 0 if is_root is None else is_root
    return may and options.worker_uids != SAME_USER


def _name_of(principal: str, token: str | None) -> str:
    """The name of a folder, different for each principal and token."""
    whose = principal if token is None else f"{principal} {token}"
    digest = hashlib.blake2b(whose.encode(), digest_size=6).hexdigest()
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
    if owner == os.geteuid() and not os.listdir(folder):  # from an interrupted start
        os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    else:  # its worker has no cache then, and logs that
        log_event("cache_of_another_user", folder=folder, owner=owner, user=user.uid)


def _check_enterable(folder: str) -> None:
    path = folder
    while path != os.path.dirname(path):
        if not os.stat(path).st_mode & 0o001:
            raise ConfigurationError(
                f"the users that workers run as cannot enter {path}, and so not {folder}, where "
                f"their programs are kept. Choose another --cache-dir, or run: chmod o+x {path}"
            )
        path = os.path.dirname(path)


def _user(uid: int) -> User:
    """A user of this machine, with its groups."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # in a container
        return User(uid, _NOBODYS_GROUP, (), str(uid), "")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)


def _own_user(uid: int) -> User:
    """A user, with a group of the same number, that belong to one account alone."""
    return User(uid, uid, (), str(uid), "")


class TenantCleanup:
    """Ends the processes of an account before its next worker starts. For one event loop.

    Args:
        tenants: the directory; only uids that belong to one account alone are cleaned up.
    """

    def __init__(self, tenants: TenantDirectory) -> None:
        self._tenants = tenants
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, principal: str) -> None:
        """Begins to end the present processes of a principal."""
        if not self._tenants.has_own_uid(principal):
            return
        earlier = self._last.get(principal)
        self._last[principal] = asyncio.create_task(self._clear(principal, earlier))

    async def clear(self, principal: str) -> None:
        """As `begin`, and waits until that and all earlier ones are done."""
        self.begin(principal)
        last = self._last.get(principal)
        if last is not None:
            await asyncio.wait([last])

    def begin_except(self, valid: Collection[str], here: Collection[str]) -> None:
        """Begins to end the processes of accounts that were removed.

        Args:
            valid: the accounts that exist.
            here: those that have a worker, or get one; read when the processes are known.
        """
        self._run_task(self._forget_gone(set(valid), here))

    def forget(self, principal: str) -> None:
        """As `begin`; removes its folders as well."""
        self._tenants.forget(principal)
        self.begin(principal)

    async def finish(self) -> None:
        """Ends the processes of all accounts; to be called when there are no more workers."""
        while waited_for := [*self._tasks, *self._last.values()]:
            await asyncio.gather(*waited_for, return_exceptions=True)
        await asyncio.to_thread(self._tenants.end_all_processes)

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget_gone(self, valid: Collection[str], here: Collection[str]) -> None:
        found = await asyncio.to_thread(self._tenants.with_processes_or_folders)
        for principal in found.difference(valid, here):
            self.forget(principal)

    async def _clear(self, principal: str, earlier: asyncio.Task[None] | None) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            await asyncio.to_thread(self._tenants.end_processes, principal)
            removal = asyncio.to_thread(self._tenants.remove_old_folders, principal)
            self._run_task(removal)  # the next worker has another folder, and need not wait
        finally:
            if self._last.get(principal) is asyncio.current_task():
                del self._last[principal]
