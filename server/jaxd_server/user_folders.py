"""Removes folders that others have filled, with no more than their rights."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from typing import Final

from jaxd_server.user_processes import words_as

__all__ = ["folders_of", "remove_folder"]

_REMOVE: Final = """
os.execv(sys.argv[3], ["rm", "-rf", "--", sys.argv[4]])
"""
"""It imports nothing any more: that user need not be able to read what Python is made of."""

_PATIENCE_S: Final = 10.0


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
            [*words_as(uid, ender, _REMOVE), shutil.which("rm") or "/bin/rm", path],
            check=False,  # it cannot remove the folder itself
            timeout=_PATIENCE_S,
            cwd=os.sep,
            stderr=subprocess.DEVNULL,
        )
        os.rmdir(path)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""
