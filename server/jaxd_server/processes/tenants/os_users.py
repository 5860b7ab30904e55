"""The processes and folders of a user of this machine, and how root ends and removes them.

Folders are removed with the rights of the user who has filled them, and no more.
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
"""Takes the user's rights, and not its name.

One may signal those whose real or saved user is one's own real or effective one. So this may end
whatever is the user's; what is the user's can neither end, stop nor trace this.
"""

_END_ALL: Final = """
if uid and ender and os.getresuid() == (ender, uid, ender):
    try:
        os.kill(-1, 9)
    except ProcessLookupError:  # there are none
        pass
"""
"""Ends all that this may end: at once, however fast they make others."""

_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.02
_one_at_a_time = threading.Lock()
"""Held while there is a process that ends others: it may end a second one of its kind, too."""


def end_processes(uid: int, ender: int, patience_s: float = _PATIENCE_S) -> str:
    """Ends all processes of a user, also those that try to prevent it. Only for root.

    Slow: processes that wait for the machine end late. Not for an event loop.

    Args:
        uid: the user; not root.
        ender: a uid that nothing else uses.
        patience_s: how long to try.

    Returns:
        Why some are left, in words; nothing when none is.
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
            why = f"What was to end them did not: {error}"
        time.sleep(min(_PAUSE_S, left_s))  # what was ended is gone a moment later
    return ""


def command_as_user(uid: int, ender: int, program: str) -> list[str]:
    """The command line of a Python program with the rights of a user who cannot control it."""
    return [sys.executable, "-I", "-S", "-c", _BECOME + program, str(ender), str(uid)]


def living_processes() -> dict[int, set[int]]:
    """The processes of each user who has any: those that may act as it, in whatever way."""
    users = defaultdict[int, set[int]](set)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            with open(f"/proc/{name}/status", "rb") as file:
                fields = dict(line.split(b":", 1) for line in file if b":" in line)
            is_dead = fields[b"State"].split()[0] in (b"Z", b"X")
            if is_dead and int(fields[b"Threads"]) <= 1:  # only its first thread may have ended
                continue
            for uid in fields[b"Uid"].split():
                users[int(uid)].add(int(name))
    return users


_REMOVE: Final = """
os.execv(sys.argv[3], ["rm", "-rf", "--", sys.argv[4]])
"""
"""It imports nothing any more: that user need not be able to read what Python is made of."""


def folders_of(root: str) -> dict[str, int]:
    """The folders in a folder, and the user that each belongs to."""
    with os.scandir(root) as entries:
        found = {entry.path: entry.stat(follow_symlinks=False) for entry in entries}
    return {path: one.st_uid for path, one in found.items() if stat.S_ISDIR(one.st_mode)}


def remove_folder(path: str, uid: int, ender: int) -> str:
    """Removes a folder of a user's from one that is root's. Only for root; takes its time.

    Whatever links lie there, nothing is lost that this user could not have removed.

    Returns:
        Why it is still there, in words; nothing when it is gone.
    """
    try:
        subprocess.run(  # noqa: S603  our own interpreter
            [*command_as_user(uid, ender, _REMOVE), shutil.which("rm") or "/bin/rm", path],
            check=False,  # it cannot remove the folder itself
            timeout=_PATIENCE_S,
            cwd=os.sep,
            stderr=subprocess.DEVNULL,
        )
        os.rmdir(path)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""
