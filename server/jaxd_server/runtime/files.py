"""Small files that are replaced as a whole, and logs that stay small."""

from __future__ import annotations

import os
import shutil


def replace_file(path: str, text: str) -> None:
    """Writes a file that only this user can read, such that it is never seen in part.

    Raises:
        OSError: when it cannot be written; the file is unchanged then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(f"{path}.new", flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # otherwise it could be empty after a power cut
    os.replace(f"{path}.new", path)


def shorten_log(path: str, most: int) -> bool:
    """Moves the content of a log that is larger than `most` bytes to `PATH.1`; whether it did.

    Whoever writes it has it open for appending, and goes on at its new beginning. What is written
    in between is lost.

    Raises:
        OSError: when there is none, or no room for the copy.
    """
    if os.path.getsize(path) <= most:
        return False
    shutil.copyfile(path, f"{path}.1")
    os.truncate(path, 0)
    return True
