"""The packages with which a record on disk was made, and whether they are the same now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from jaxd_protocol.packages.distributions import Package, package_of
from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache import Store
from jaxd_server.runtime.imported_packages import ImportedPackages


class Environments:
    """What was imported when something was made: a record on disk, by its digest. Thread-safe.

    Args:
        store: the files.
        packages: what this process has imported.
        spoilt: told of a record that is not what it should be.
    """

    def __init__(
        self, store: Store, packages: ImportedPackages, spoilt: Callable[[str, bytes], None]
    ) -> None:
        self._store = store
        self._packages = packages
        self._spoilt = spoilt
        self._known: dict[bytes, tuple[tuple[str, Package], ...]] = {}

    def is_current(self, name: bytes) -> bool:
        """Whether the packages that were loaded then are the same now."""
        rows = self._known.get(name)
        if rows is None:
            record = self._store.read("environments", name)
            if record is None:
                return False
            try:
                rows = tuple((root, Package(*package)) for root, *package in record.content)
            except (TypeError, ValueError):
                self._spoilt("environments", name)
                return False
            self._known[name] = rows
        return all(package_of(root) == package for root, package in rows)

    def keep(self) -> bytes:
        """The name of the present one, which is written if it was not."""
        self._packages.record()
        rows = tuple((root, *package) for root, package in self._packages.imported())
        name = hashlib.blake2b(dump_literal(rows), digest_size=16).digest()
        if not self._store.has("environments", name):
            self._store.write("environments", name, rows)
        return name
