"""Small files that are replaced as a whole."""

from __future__ import annotations

import os


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
