"""The files in a cache folder, and their size."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

from jaxd_server.cache.directory import KINDS, TARGET_FILE, VERSION, Kind

_BLOCK: Final = 4096
_TARGET: Final = re.compile(r"[0-9a-f]{16}")
_VERSION: Final = re.compile(r"v\d+")


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in a cache folder.

    Attributes:
        bytes: room taken, in whole blocks of the disk.
        files: how many records of each kind.
    """

    bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)


class Entry(NamedTuple):
    """One file.

    Attributes:
        target: the folder of what it is good for.
        kind: the folder in that.
        path: where it lies.
        bytes: room taken, in whole blocks of the disk.
        used: when it was used last, in seconds since 1970.
    """

    target: str
    kind: Kind
    path: str
    bytes: int
    used: float


def entries(root: str, target: str | None = None) -> Iterator[Entry]:
    """All records below a cache folder, or those of one target."""
    for name, kind in product([target] if target else targets(root), KINDS):
        folder = f"{root}/{VERSION}/{name}"
        for file, status in files_in(f"{folder}/{kind}"):
            if not file.name.startswith("."):
                size = room(status.st_size)
                yield Entry(folder, kind, file.path, size, status.st_mtime)


def usage(root: str, target: str | None = None) -> Usage:
    """How much lies below a cache folder, or what one target has there."""
    found = list(entries(root, target))
    return Usage(sum(entry.bytes for entry in found), dict(Counter(each.kind for each in found)))


def targets(root: str) -> list[str]:
    """The names of all targets in the format of this version."""
    return _folders(f"{root}/{VERSION}", _TARGET)


def room(size: int) -> int:
    """What a file of this size takes of the disk."""
    return -(-size // _BLOCK) * _BLOCK


def _folders(folder: str, pattern: re.Pattern[str]) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if pattern.fullmatch(name))
    except OSError:
        return []


def files_in(folder: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What is in a folder, links not followed; nothing when there is no such folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for file in found:
            with contextlib.suppress(OSError):  # removed by another server
                yield file, file.stat(follow_symlinks=False)


def foreign_targets(root: str) -> list[str]:
    """The targets of other versions; a folder of the user's own is not among them."""
    return [
        f"{root}/{version}/{name}"
        for version in _folders(root, _VERSION)
        if version != VERSION
        for name in _folders(f"{root}/{version}", _TARGET)
        if os.path.exists(f"{root}/{version}/{name}/{TARGET_FILE}")
    ]


_COARSE_S: Final = 1.0
_SHARE: Final = 20.0


class FolderUsage(NamedTuple):
    """What lies in a folder.

    Attributes:
        bytes: room taken, in whole blocks of the disk.
        files: how many records.
    """

    bytes: int = 0
    files: int = 0

    @classmethod
    def total(cls, parts: Iterable[FolderUsage]) -> FolderUsage:
        """The sums."""
        each = list(parts)
        return cls(sum(part.bytes for part in each), sum(part.files for part in each))


class _CachedScan(NamedTuple):
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
    taken: FolderUsage


class DiskUsage:
    """What is kept for one target. Thread-safe.

    A folder is read again when something in it has changed, and however often this is called,
    no more than a twentieth of the time is spent on that.

    Args:
        folder: that of the target; None where nothing is kept.
    """

    def __init__(self, folder: str | None) -> None:
        self._folders = [f"{folder}/{kind}" for kind in KINDS] if folder else []
        self._seen: dict[str, _CachedScan] = {}
        self._lock = threading.Lock()  # guards _seen; others wait and need not look as well

    def now(self) -> FolderUsage:
        """How much there is; a little late while much is being written."""
        with self._lock:
            return FolderUsage.total(map(self._scan, self._folders))

    def _scan(self, folder: str) -> FolderUsage:
        try:
            changed_ns = os.stat(folder).st_mtime_ns
        except OSError:  # there is none of the kind
            return FolderUsage()
        seen = self._seen.get(folder)
        if seen is None or not _is_fresh(seen, changed_ns):
            seen = self._seen[folder] = _scanned(folder, changed_ns)
        return seen.taken


def _is_fresh(seen: _CachedScan, changed_ns: int) -> bool:
    if seen.settled and seen.changed_ns == changed_ns:
        return True
    return time.monotonic() - seen.at < _SHARE * seen.took_s


def _scanned(folder: str, changed_ns: int) -> _CachedScan:
    started, began = time.monotonic(), time.time()
    sizes = [room(file.st_size) for entry, file in files_in(folder) if entry.name[:1] != "."]
    now = time.monotonic()
    # The clock of a file system has coarse ticks: two changes in one tick look like one.
    settled = began - changed_ns / 1e9 > _COARSE_S
    return _CachedScan(changed_ns, settled, now, now - started, FolderUsage(sum(sizes), len(sizes)))
