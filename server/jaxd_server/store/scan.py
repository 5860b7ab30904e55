"""What lies in a cache folder, file by file."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from jaxd_server.store.directory import TARGET_FILE, VERSION
from jaxd_server.store.kinds import KINDS, Kind

__all__ = [
    "Entry",
    "Usage",
    "entries",
    "files_in",
    "foreign_targets",
    "room",
    "targets",
    "usage",
]

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
    for name in [target] if target else targets(root):
        folder = f"{root}/{VERSION}/{name}"
        for kind in KINDS:
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
            with contextlib.suppress(OSError):  # another server sweeps too
                yield file, file.stat(follow_symlinks=False)


def foreign_targets(root: str) -> list[str]:
    """The targets of other versions; surely none of the user's own folders."""
    return [
        f"{root}/{version}/{name}"
        for version in _folders(root, _VERSION)
        if version != VERSION
        for name in _folders(f"{root}/{version}", _TARGET)
        if os.path.exists(f"{root}/{version}/{name}/{TARGET_FILE}")
    ]
