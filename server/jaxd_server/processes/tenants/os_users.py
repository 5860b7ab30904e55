"""Ends the processes and removes the folders of a user of this machine. Only for root.

Folders are removed with the permissions of the user that owns their content.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Final

_BECOME: Final = """
import os, sys
ender, uid = map(int, sys.argv[1:3])
os.setgroups([])
os.setresgid(ender, ender, ender)
os.setresuid(ender, uid, ender)
"""
"""Takes the effective uid of the user, and keeps the real and saved one of the ender.

A process may signal those whose real or saved uid is its own real or effective one. So this one can
end all processes of the user, and none of them can end, stop or trace this one.
"""

_END_ALL: Final = """
if uid and ender and os.getresuid() == (ender, uid, ender):
    try:
        os.kill(-1, 9)
    except ProcessLookupError:  # the user has no processes
        pass
"""
"""Signals all permitted processes in one system call, so that none can fork in between."""

_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.02
_one_at_a_time = threading.Lock()
"""Held while a process ends others: it could end a second one of its kind as well."""


def end_processes(uid: int, ender: int, patience_s: float = _PATIENCE_S) -> str:
    """Ends all processes of a user, also those that try to prevent it. Only for root.

    Not for an event loop: processes in an uninterruptible wait end late.

    Args:
        uid: the user; not root.
        ender: a uid that nothing else uses.
        patience_s: the timeout.

    Returns:
        The reason why some are left; empty when none is.
    """
    words = command_as_user(uid, ender, _END_ALL)
    until, why = time.monotonic() + patience_s, ""
    while left := living_processes().get(uid):
        left_s = until - time.monotonic()
        if left_s <= 0:
            return f"{len(left)} are left, such as {min(left)}. {why}".rstrip()
        try:
            with _one_at_a_time:
                subprocess.run(words, check=True, timeout=left_s)  # noqa: S603  our interpreter
        except (OSError, subprocess.SubprocessError) as error:
            why = f"The process that ends them failed: {error}"
        time.sleep(min(_PAUSE_S, left_s))  # a killed process disappears a moment later
    return ""


def command_as_user(uid: int, ender: int, program: str) -> list[str]:
    """The command of a Python program with the permissions of a user, who cannot control it."""
    return [sys.executable, "-I", "-S", "-c", _BECOME + program, str(ender), str(uid)]


def living_processes() -> dict[int, set[int]]:
    """The processes by uid: each by its real, effective, saved and file system uid."""
    users = defaultdict[int, set[int]](set)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended in between
            with open(f"/proc/{name}/status", "rb") as file:
                fields = dict(line.split(b":", 1) for line in file if b":" in line)
            is_dead = fields[b"State"].split()[0] in (b"Z", b"X")
            if is_dead and int(fields[b"Threads"]) <= 1:  # otherwise only its main thread has ended
                continue
            for uid in fields[b"Uid"].split():
                users[int(uid)].add(int(name))
    return users


_REMOVE: Final = """
os.execv(sys.argv[3], ["rm", "-rf", "--", sys.argv[4]])
"""
"""Imports nothing: the user may lack the permission to read Python's library."""


def folders_of(root: str) -> dict[str, int]:
    """The folders in a folder, with the uids of their owners."""
    with os.scandir(root) as entries:
        found = {entry.path: entry.stat(follow_symlinks=False) for entry in entries}
    return {path: one.st_uid for path, one in found.items() if stat.S_ISDIR(one.st_mode)}


def remove_folder(path: str, uid: int, ender: int) -> str:
    """Removes a user's folder from one of root's. Only for root; slow.

    Whatever links it contains, only files are removed that this user could have removed.

    Returns:
        The reason why it is still there; empty when it is removed.
    """
    try:
        subprocess.run(  # noqa: S603  our own interpreter
            [*command_as_user(uid, ender, _REMOVE), shutil.which("rm") or "/bin/rm", path],
            check=False,  # it fails to remove the folder itself, which is in one of root's
            timeout=_PATIENCE_S,
            cwd=os.sep,
            stderr=subprocess.DEVNULL,
        )
        os.rmdir(path)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""
