"""Keeps the cache folder below its limit: removes first what is long unused and cheap to make."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final, NamedTuple

from jaxd_server.cache.directory import KINDS, TAG, VERSION, Kind
from jaxd_server.cache.disk_usage import (
    Entry,
    FolderUsage,
    entries,
    files_in,
    foreign_targets,
    room,
    targets,
)
from jaxd_server.cache.record_file import InvalidRecord, read_header

_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_LEAST_COST_S: Final = 0.1
_FILES_IN: Final = {
    "eager": re.compile(r".+-(cache|atime)|trimmed"),
    "quarantine": re.compile(r"[0-9a-f]{16}\.json"),
    "refused": re.compile(r"[0-9a-f]{16}\.json(\.[0-9]+)?"),
    "use": re.compile(r"use\.json(\.new)?"),
}
"""The names of files in the folders of a cache folder that have no targets."""

_WHOLE: Final = ("principals", TAG)

_LEVEL: Final = 0.9
_TEMPORARY: Final = re.compile(r"\.(\d+)-[0-9a-f]+\.tmp")
# How a call names the other records that it needs.
_NAMED_BY_CALLS: Final[dict[Kind, str]] = {
    "programs": "program",
    "functions": "key",
    "code": "code",
    "reads": "code",
    "environments": "environment",
}


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep removed.

    Attributes:
        files: how many.
        bytes: room that they took.
        left: room that the others still take.
    """

    files: int = 0
    bytes: int = 0
    left: int = 0


def sweep(
    root: str,
    target: str | None,
    limit: int,
    level: int | None = None,
    principal_limit: int = 0,
) -> SweepResult:
    """Removes leftovers of dead writers, and records until at most `limit` bytes are taken.

    Before that, each principal with more than `principal_limit` bytes loses calls of its own, with
    all that only they need, in the order below, until nine tenths of that limit are left.

    First go targets in another format, then other targets that were not used for a day, each as
    a whole; then records that no call needs; then calls with all that only they need, and entries
    of jax's own cache, in the order of how long they were not used, divided by the seconds that
    it took to make them. What is younger than an hour is not taken for unneeded: its call may be
    about to be written.

    Args:
        root: the cache folder.
        target: the target in use, which is never taken for an old one; None: the one used last.
        limit: bytes; 0 removes everything.
        level: bytes that are left when more than `limit` are taken; by default the same.
        principal_limit: bytes of what was made for one principal and no other's calls need;
            0: no limit.
    """
    run = _Sweep(root)
    run.remove_temporaries()
    if principal_limit:
        run.remove_over_principal_limit(principal_limit)
    if run.taken > limit:
        run.remove_until(limit if level is None else level, target)
    return SweepResult(run.files, run.freed, run.taken)


def clear(root: str) -> None:
    """Removes all targets of every version; the folder itself and what else is in it stays."""
    for folder in _target_folders(root):
        shutil.rmtree(folder, ignore_errors=True)


def _target_folders(root: str) -> list[str]:
    return [*(f"{root}/{VERSION}/{name}" for name in targets(root)), *foreign_targets(root)]


def kept_parts(root: str) -> dict[str, FolderUsage]:
    """All that jaxd has below a cache folder, by its name there; the user's own is left out."""
    parts = sorted(_own_paths(root).items())
    return {name: FolderUsage.total(map(_tree, paths)) for name, paths in parts if paths}


def purge(root: str) -> None:
    """Removes all of `kept_parts`, and the folders that are empty then."""
    for name, paths in _own_paths(root).items():
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # it was a folder
                os.unlink(path)
        with contextlib.suppress(OSError):  # it is no folder, or something of the user's is in it
            os.rmdir(f"{root}/{name}")
    with contextlib.suppress(OSError):
        os.rmdir(root)


def _own_paths(root: str) -> dict[str, list[str]]:
    """What jaxd has made in a cache folder, by the names there: files, and whole folders.

    A folder of the user's own that has such a name has other things in it, which stay.
    """
    found: dict[str, list[str]] = {VERSION: []}
    for folder in _target_folders(root):
        found.setdefault(os.path.basename(os.path.dirname(folder)), []).append(folder)
    for name, pattern in _FILES_IN.items():
        folder = f"{root}/{name}"
        listed = os.listdir(folder) if _is_here(folder) and os.path.isdir(folder) else ()
        names = filter(pattern.fullmatch, listed)
        found[name] = [f"{folder}/{each}" for each in names]
    # Users that jaxd has made may have written anything.
    found |= {name: [f"{root}/{name}"] for name in _WHOLE if _is_here(f"{root}/{name}")}
    return found


def _is_here(path: str) -> bool:
    return os.path.exists(path) and not os.path.islink(path)


class _Sweep:
    """One sweep under way."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._now = time.time()
        self._left = {entry.path: entry for entry in entries(root)}
        self._foreign = {folder: _tree(folder) for folder in foreign_targets(root)}
        self.taken = sum(each.bytes for each in self._left.values()) + sum(
            each.bytes for each in self._foreign.values()
        )
        self.files = 0
        self.freed = 0

    def remove_temporaries(self) -> None:
        """Removes what was being written when its process ended, in every target."""
        for name, kind in product(targets(self._root), ("", *KINDS)):
            for file, status in files_in(f"{self._root}/{VERSION}/{name}/{kind}"):
                if _is_left_over(file.name, self._now - status.st_mtime):
                    self._unlink(file.path, room(status.st_size))

    def remove_over_principal_limit(self, limit: int) -> None:
        """Of each principal that has more than `limit` its own calls, with what only they need."""
        makers: dict[str, set[str]] = defaultdict(set)
        by_principal: dict[str, list[_Unit]] = defaultdict(list)
        for unit in self._calls:
            by_principal[unit.principal].append(unit)
            for path in unit.needs:
                makers[path].add(unit.principal)
        for principal, own in by_principal.items():
            needed = {path for unit in own for path in unit.needs if makers[path] == {principal}}
            needed.update(unit.entry.path for unit in own)
            taken = sum(self._left[path].bytes for path in needed & self._left.keys())
            if taken > limit:
                self._remove_units(own, self.taken - taken + int(limit * _LEVEL))

    def remove_until(self, limit: int, target: str | None) -> None:
        """Removes in the order of `sweep` until at most `limit` is taken."""
        for folder, tree in self._foreign.items():
            if self.taken > limit:
                shutil.rmtree(folder, ignore_errors=True)
                self.taken -= tree.bytes
                self.freed += tree.bytes
        self._remove_targets(limit, target)
        if self.taken > limit:
            self._remove_units(self._orphans(limit), limit)
        if self.taken > limit:
            jaxs_own = (_Unit(each) for each in self._left.values() if each.kind == "xla")
            self._remove_units([*jaxs_own, *self._calls], limit)

    def _remove_targets(self, limit: int, own: str | None) -> None:
        """Whole targets that were not used for a day, the one longest unused first."""
        by_target: dict[str, list[Entry]] = defaultdict(list)
        for entry in self._left.values():
            by_target[entry.target].append(entry)
        used = {folder: max(each.used for each in all_) for folder, all_ in by_target.items()}
        in_order = sorted(used, key=used.__getitem__)
        own = own or (os.path.basename(in_order[-1]) if in_order else None)
        for folder in in_order:
            is_old = self._now - used[folder] > _DAY_S and os.path.basename(folder) != own
            if is_old and self.taken > limit:
                for entry in by_target[folder]:
                    self._remove(entry.path)
                shutil.rmtree(folder, ignore_errors=True)

    def _orphans(self, limit: int) -> list[_Unit]:
        """What no call needs, and is not about to be needed."""
        return [
            _Unit(entry)
            for entry in self._left.values()
            if entry.kind in _NAMED_BY_CALLS
            and not self._naming[entry.path]
            and (self._now - entry.used > _HOUR_S or limit == 0)
        ]

    @cached_property
    def _calls(self) -> list[_Unit]:
        return [_unit(entry) for entry in self._left.values() if entry.kind == "calls"]

    @cached_property
    def _naming(self) -> Counter[str]:
        """How many calls that are left need each file."""
        return Counter(path for unit in self._calls for path in unit.needs)

    def _remove_units(self, units: list[_Unit], limit: int) -> None:
        """Removes units, those of least worth first, until at most `limit` is taken."""
        for unit in sorted(units, key=lambda unit: unit.age(self._now), reverse=True):
            if self.taken <= limit:
                return
            if self._remove(unit.entry.path):
                self._naming.subtract(unit.needs)
                for path in [path for path in unit.needs if not self._naming[path]]:
                    self._remove(path)

    def _remove(self, path: str) -> bool:
        """Removes a file; False: it was removed before."""
        entry = self._left.pop(path, None)
        if entry is not None and self._unlink(path, entry.bytes):
            self.taken -= entry.bytes
        return entry is not None

    def _unlink(self, path: str, size: int) -> bool:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        self.files += 1
        self.freed += size
        return True


class _Unit(NamedTuple):
    """A file that is removed with what only it needs: its cost to make again, and its principal."""

    entry: Entry
    cost_s: float = 0.0
    needs: tuple[str, ...] = ()
    principal: str = ""

    def age(self, now: float) -> float:
        """Since its last use, divided by what it costs to make."""
        return (now - self.entry.used) / max(self.cost_s, _LEAST_COST_S)


def _unit(entry: Entry) -> _Unit:
    """A call that cannot be read needs nothing and costs nothing."""
    try:
        fields = dict(read_header(entry.path).content)
    except (OSError, InvalidRecord, TypeError, ValueError):
        return _Unit(entry)
    needs = tuple(
        f"{entry.target}/{kind}/{name.hex()}"
        for kind, field_name in _NAMED_BY_CALLS.items()
        if isinstance(name := fields.get(field_name), bytes)
    )
    cost_s = _seconds(fields, "trace_s") + _seconds(fields, "compile_s")
    return _Unit(entry, cost_s, needs, str(fields.get("principal", "")))


def _seconds(fields: dict[Any, Any], name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _tree(path: str) -> FolderUsage:
    """What lies below a folder, or of one file."""
    sizes = [room(os.lstat(path).st_size)] if not os.path.isdir(path) else []
    sizes += [
        room(status.st_size)
        for folder, _, _ in os.walk(path)
        for file, status in files_in(folder)
        if file.is_file(follow_symlinks=False)
    ]
    return FolderUsage(sum(sizes), len(sizes))


def _is_left_over(name: str, age_s: float) -> bool:
    """Whether it is the unfinished file of a dead process.

    An age of one hour decides where process ids prove nothing, because several containers share the
    folder; a minute keeps us from the files of a process that we cannot see.
    """
    match = _TEMPORARY.fullmatch(name)
    if not match:
        return False
    return age_s > _HOUR_S or (age_s > _MINUTE_S and not _is_alive(int(match[1])))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
