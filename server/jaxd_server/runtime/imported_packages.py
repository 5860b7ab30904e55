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
from jaxd_server.runtime.import_graph import ImportGraph, packages_named

Dependencies = tuple[tuple[str, Package], ...]
"""Import name and package of each, sorted."""


class Change(NamedTuple):
    """A package that this process runs in an older state than the one on disk.

    Attributes:
        old: as this process has it.
        new: as it is now; None when it is gone.
    """

    old: Package
    new: Package | None

    @property
    def text(self) -> str:
        """What happened to it."""
        return describe_change(self.old, self.new)


class ImportedPackages:
    """The installed packages of which modules are loaded. Thread-safe.

    A package that is not loaded may change: it will be imported in its new state.
    """

    def __init__(self) -> None:
        self._graph = ImportGraph()
        self._lock = threading.Lock()  # guards all of these
        self._seen: set[str] = set()  # modules
        self._roots: set[str] = set()
        self._imported: dict[str, Package] = {}  # by root
        self._modules: dict[str, list[str]] = {}  # by root; only ever added to
        self._outdated: dict[Package, str] = {}  # their roots

    def record(self) -> None:
        """Records what has been imported since the last call."""
        if len(sys.modules) != len(self._seen):  # modules are added, and hardly ever replaced
            self._record()

    def _record(self) -> None:
        with self._lock:
            loaded = set(sys.modules)
            # another process could not import an alias by that name
            new = {name: import_root(name) for name in loaded - self._seen if not _is_alias(name)}
            for name, root in new.items():
                self._modules.setdefault(root, []).append(name)
            # the host runs jaxd as well: a new worker alone would not match it
            for root in set(new.values()) - self._roots - OWN_PACKAGES:
                self._roots.add(root)
                package = package_of(root)
                if package is not None and not _is_shared(package):
                    self._imported[root] = package
            self._seen = loaded

    def imported(self) -> Dependencies:
        """All of them, as last recorded."""
        with self._lock:
            return tuple(sorted(self._imported.items()))

    def dependencies(self, names: Iterable[str] | None, data: Iterable[bytes] = ()) -> Dependencies:
        """The packages that code may have run which names some modules.

        Args:
            names: full names of the modules; None: it is not known which.
            data: packed objects, which name more.
        """
        self._record()
        with self._lock:
            imported = self._imported.copy()
            # what lies beside the installed packages imports some as well
            modules = {root: self._modules[root] for root in self._modules if not _is_own(root)}
        if names is None:
            return tuple(sorted(imported.items()))
        packed = tuple(data)
        starts = packages_named(names, modules)
        starts.update(root for root in modules if any(root.encode() in each for each in packed))
        distributions = {root: package.name for root, package in imported.items()}
        reached = self._graph.reached(starts, modules, distributions)
        return tuple(sorted((root, imported[root]) for root in reached & imported.keys()))

    def adopt(self, rows: Iterable[tuple[str, Package]]) -> None:
        """Records what another process has imported to build for this one.

        A package that this process has in another state has changed in between.
        """
        for root, package in rows:
            here = package_of(root)
            with self._lock:
                mine = self._imported.get(root)
                if root not in self._roots and mine is None:  # until this one imports it itself
                    self._imported[root] = package
                    if here != package:
                        self._outdated[package] = root
                    continue
                if mine not in (None, package):
                    self._outdated[package if still_current(mine) else mine] = root

    def changes(self) -> list[Change]:
        """The packages that have changed on disk since they were imported, all of them each time.

        Costs one system call for each package.
        """
        self.record()
        with self._lock:
            # it may have changed before
            names = {old.name for old, _ in changed_since_first_seen()}
            self._outdated.update(
                (package, root) for root, package in self._imported.items() if package.name in names
            )
            outdated = list(self._outdated.items())
        return _changes(outdated)

    def changes_of(self, dependencies: Dependencies) -> list[Change]:
        """What has become of some packages, as far as `changes` has noticed.

        They may be in a state that this process never had, as another has traced with them.
        """
        if not self.have_changed:
            return []
        with self._lock:
            roots = set(self._outdated.values())
        return _changes((package, root) for root, package in dependencies if root in roots)

    @property
    def have_changed(self) -> bool:
        """Whether `changes` has ever found any."""
        return bool(self._outdated)


def _changes(outdated: Iterable[tuple[Package, str]]) -> list[Change]:
    """What became of packages; nothing of one that is there again as it was."""
    found = (Change(old, package_of(root)) for old, root in outdated)
    return [change for change in found if change.new != change.old]


def _is_own(root: str) -> bool:
    """Whether modules are Python's, jaxd's, or that which the process was started with."""
    return root in OWN_PACKAGES or root in sys.stdlib_module_names or root == "__main__"


def _is_alias(name: str) -> bool:
    """Whether a module is loaded under another name as well, which is its own."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and spec.name != name


def _is_shared(package: Package) -> bool:
    """Whether it is a namespace of several packages, which are recorded separately."""
    return ", " in package.name
