"""Installed packages: which distribution a module comes from, and what exactly is installed.

Nothing is imported to find out. What was found is kept until `changed_since_first_seen` notices
that it is no longer what stands on the disk.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from typing import NamedTuple

from jaxd_protocol.packages.distributions import (
    FileStamp,
    describe,
    digest_of_files,
    digest_of_record,
    file_stamp,
    owners,
)
from jaxd_protocol.packages.installed import is_local_file, site_folder


class Package(NamedTuple):
    """An installed distribution.

    Attributes:
        name: as pip calls it; several for a namespace that they share: `a, b`.
        version: as its metadata says; empty for a module that stands in `site-packages` without
            any metadata.
        digest: sixteen bytes over the rows of its RECORD that name files inside the package; over
            names, sizes and times of its code files where there is no RECORD.
    """

    name: str
    version: str
    digest: bytes


class _FoundPackage(NamedTuple):
    package: Package
    root: str
    stamps: tuple[FileStamp, ...]


_found: dict[str, _FoundPackage] = {}
"""By module: full names as they were asked for, and roots. Changed under `_lock`, read without."""

_described: dict[FileStamp, Package] = {}
"""By RECORD: what a distribution is, so that its modules share one look at it."""

_lock = threading.Lock()


def _after_fork() -> None:
    """A thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603  it belongs to the module, as what it guards does
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def package_of(module: str) -> Package | None:
    """The distribution that a module belongs to, imported or not.

    Answers with what was found first in this process, until `changed_since_first_seen` has told
    that it changed.

    Args:
        module: a full name, such as `jax.numpy`.

    Returns:
        None for the standard library, local modules and what is not installed.
    """
    found = _found.get(module)
    if found is not None:
        return found.package
    root = import_root(module)
    found = _found.get(root) or _find_package(root)
    if found is None:
        return None
    with _lock:
        return _found.setdefault(module, _found.setdefault(root, found)).package


def import_root(module: str) -> str:
    """The shortest leading part of a name that one distribution owns: `jax`, `google.protobuf`."""
    name, _, rest = module.partition(".")
    while rest and _is_namespace(_spec(name)):
        head, _, rest = rest.partition(".")
        name = f"{name}.{head}"
    return name


def still_current(package: Package) -> bool:
    """Whether what stands on the disk is still that package; costs a look at its RECORD's stamp.

    A package that was not found by this process is not current.
    """
    mine = [found for found in list(_found.values()) if found.package == package]
    return bool(mine) and all(_unchanged(found) for found in mine)


def changed_since_first_seen() -> list[tuple[Package, Package | None]]:
    """Packages that are no longer what `package_of` said: what it said, and what is there now.

    Each change is told once; from then on `package_of` tells what is there. None stands for a
    package that is gone. Costs one system call for each package that is known.
    """
    changes: dict[Package, Package | None] = {}
    for root, found in list(_found.items()):
        if root != found.root or _unchanged(found):
            continue
        new = _find_package(root)
        with _lock:
            for name in [name for name, one in _found.items() if one.root == root]:
                del _found[name]
            if new is not None:
                _found[root] = new
        package = None if new is None else new.package
        if package != found.package:
            changes[found.package] = package
    return list(changes.items())


def describe_change(old: Package, new: Package | None) -> str:
    """What happened to a package on disk, as a sentence without its full stop."""
    if new is None:
        return f"{old.name} {old.version} is no longer installed"
    if new.version == old.version:
        return f"{old.name} {old.version} was installed again with other files"
    return f"{old.name} was changed from {old.version} to {new.version}"


def _unchanged(found: _FoundPackage) -> bool:
    return all(file_stamp(old.path) == old for old in found.stamps)


def _find_package(root: str) -> _FoundPackage | None:
    spec = _spec(root)
    if spec is None or root == "__main__" or root in sys.stdlib_module_names:
        return None
    if _is_namespace(spec):
        folders = [folder + "/" for folder in spec.submodule_search_locations or ()]
        return _merged(root, [found for each in folders for found in _package_at(root, each)])
    return _merged(root, _package_at(root, spec.origin or "")[:1])


def _package_at(root: str, path: str) -> list[_FoundPackage]:
    """What is known of a file, or a folder (with `/` at its end): the last installed first."""
    site = site_folder(path)
    if site is None or is_local_file(path):
        return []
    inside = path[len(site) + 1 :].replace(os.sep, "/")
    found = []
    for metadata in owners(site, inside):
        if metadata.record is not None:
            state = file_stamp(metadata.record)
            package = _described.get(state)
            if package is None:
                package = Package(*describe(metadata), digest_of_record(metadata.record))
                _described[state] = package
        else:
            state = file_stamp(metadata.path)
            package = Package(*describe(metadata), digest_of_files(_package_folder(path)))
        found.append(_FoundPackage(package, root, (state,)))
    if not found and not path.endswith("/"):
        bare = Package(root, "", digest_of_files(_package_folder(path)))
        return [_FoundPackage(bare, root, (file_stamp(path), file_stamp(site)))]
    return found


def _package_folder(path: str) -> str:
    """The folder of a package whose `__init__` was given, else the file itself."""
    folder, name = os.path.split(path)
    return folder if name.startswith("__init__.") else path


def _merged(root: str, found: list[_FoundPackage]) -> _FoundPackage | None:
    if len(found) <= 1:
        return found[0] if found else None
    found.sort()
    packages = [one.package for one in found]
    joined = Package(
        ", ".join(package.name for package in packages),
        ", ".join(package.version for package in packages),
        b"".join(package.digest for package in packages),
    )
    return _FoundPackage(joined, root, tuple(state for one in found for state in one.stamps))


def _is_namespace(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is or would be loaded from; imports nothing."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if loaded is not None:
        return loaded  # type: ignore[no-any-return]
    parent, _, last = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    above = _spec(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    # The last part alone: the finder takes the parent of a dotted name for imported.
    return PathFinder.find_spec(last, list(above.submodule_search_locations))
