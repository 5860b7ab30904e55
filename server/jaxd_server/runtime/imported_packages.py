"""The packages that this worker has imported, and which of them have changed on disk since."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import NamedTuple

from jaxd_protocol.packages.distributions import (
    Package,
    changed_since_first_seen,
    describe_change,
    import_root,
    package_of,
    still_current,
)
from jaxd_protocol.packages.installed import OWN_PACKAGES


class Change(NamedTuple):
    """A package that this process runs in an older state than the one on disk.

    Attributes:
        package: as pip calls it.
        text: what happened to it.
    """

    package: str
    text: str


class ImportedPackages:
    """The installed packages of which modules are loaded. Thread-safe.

    A package that is not loaded may change: it will be imported in its new state.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of these
        self._seen: set[str] = set()  # modules
        self._roots: set[str] = set()
        self._imported: dict[str, Package] = {}  # by root
        self._changes: list[Change] = []

    def record(self) -> None:
        """Records what has been imported since the last call."""
        if len(sys.modules) == len(self._seen):
            return  # modules are added here, and not replaced by others
        with self._lock:
            loaded = set(sys.modules)
            # another process could not import an alias by that name
            roots = {import_root(name) for name in loaded - self._seen if not _is_alias(name)}
            # the host runs jaxd as well: a new worker alone would not match it
            for root in roots - self._roots - OWN_PACKAGES:
                self._roots.add(root)
                package = package_of(root)
                if package is not None and not _is_shared(package):
                    self._imported[root] = package
            self._seen = loaded

    def imported(self) -> list[tuple[str, Package]]:
        """Import name and package of each, sorted, as last recorded."""
        with self._lock:
            return sorted(self._imported.items())

    def adopt(self, rows: Iterable[tuple[str, Package]]) -> None:
        """Records what another process has imported to build for this one.

        A package that this process has in another state has changed in between.
        """
        for root, package in rows:
            here = package_of(root)
            with self._lock:
                if root not in self._roots:
                    self._roots.add(root)
                    self._imported[root] = package
                    if here != package:
                        self._add(package, here)
                    continue
                mine = self._imported.get(root)
                if mine not in (None, package):
                    self._add(*((package, mine) if still_current(mine) else (mine, package)))

    def changes(self) -> list[Change]:
        """The packages that have changed on disk since they were imported, all of them each time.

        Costs one system call for each package.
        """
        self.record()
        with self._lock:
            for old, new in changed_since_first_seen():
                if old in self._imported.values():
                    self._add(old, new)
            return list(self._changes)

    def _add(self, old: Package, new: Package | None) -> None:
        change = Change(old.name, describe_change(old, new))
        if change.text not in [one.text for one in self._changes]:
            self._changes.append(change)


def _is_alias(name: str) -> bool:
    """Whether a module is loaded under another name as well, which is its own."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and spec.name != name


def _is_shared(package: Package) -> bool:
    """Whether it is a namespace of several packages, which are recorded separately."""
    return ", " in package.name
