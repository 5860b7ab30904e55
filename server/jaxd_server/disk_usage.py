"""How much is kept on disk, without looking at every file each time that somebody asks."""

from __future__ import annotations

import os
import threading
import time
from typing import Final, NamedTuple

from jaxd_server.store.kinds import KINDS
from jaxd_server.store.scan import files_in, room

__all__ = ["DiskUsage", "Taken"]

_COARSE_S: Final = 1.0
_SHARE: Final = 20.0


class Taken(NamedTuple):
    """What lies in a folder.

    Attributes:
        bytes: room taken, in whole blocks of the disk.
        files: how many records.
    """

    bytes: int = 0
    files: int = 0


class _Seen(NamedTuple):
    """A folder as it was found.

    Attributes:
        changed_ns: when something was put into it, or removed.
        settled: whether a later change is sure to show in that.
        at: `time.monotonic()` when it was looked at.
        took_s: how long that took.
        taken: what was in it.
    """

    changed_ns: int
    settled: bool
    at: float
    took_s: float
    taken: Taken


class DiskUsage:
    """What is kept for one target. Thread-safe.

    A folder is looked at again when something in it has changed, and however often somebody asks,
    no more than a twentieth of the time is spent on that.

    Args:
        folder: that of the target; None where nothing is kept.
    """

    def __init__(self, folder: str | None) -> None:
        self._folders = [f"{folder}/{kind}" for kind in KINDS] if folder else []
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()  # guards _seen; others wait and need not look as well

    def now(self) -> Taken:
        """How much there is; a little late while much is being written."""
        with self._lock:
            found = [self._look(folder) for folder in self._folders]
        return Taken(sum(one.bytes for one in found), sum(one.files for one in found))

    def _look(self, folder: str) -> Taken:
        try:
            changed_ns = os.stat(folder).st_mtime_ns
        except OSError:  # there is none of the kind
            return Taken()
        seen = self._seen.get(folder)
        if seen is None or not _is_good(seen, changed_ns):
            seen = self._seen[folder] = _scanned(folder, changed_ns)
        return seen.taken


def _is_good(seen: _Seen, changed_ns: int) -> bool:
    if seen.settled and seen.changed_ns == changed_ns:
        return True
    return time.monotonic() - seen.at < _SHARE * seen.took_s


def _scanned(folder: str, changed_ns: int) -> _Seen:
    started, began = time.monotonic(), time.time()
    sizes = [room(file.st_size) for entry, file in files_in(folder) if entry.name[:1] != "."]
    now = time.monotonic()
    # The clock of a file system has coarse ticks: two changes in one tick look like one.
    settled = began - changed_ns / 1e9 > _COARSE_S
    return _Seen(changed_ns, settled, now, now - started, Taken(sum(sizes), len(sizes)))
