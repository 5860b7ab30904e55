"""Installed packages: which distribution a module comes from, and what exactly is installed.

Nothing is imported to find out. Results are kept until `changed_since_first_seen` finds other
files on the disk.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from typing import Final, NamedTuple

from jaxd_protocol.packages.installed import is_local_file, site_folder


class Package(NamedTuple):
    """An installed distribution.

    Attributes:
        name: as for pip; several for a namespace that they share: `a, b`.
        version: from its metadata; empty for a module in `site-packages` without any metadata.
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
"""By full name of a module, and by root. Changed under `_lock`, read without."""

_lock = threading.Lock()


def _after_fork() -> None:
    """A thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603  it belongs to the module, as what it guards does
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def package_of(module: str) -> Package | None:
    """The distribution that a module belongs to, imported or not.

    The result is what was found first in this process, until `changed_since_first_seen` has
    reported a change.

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


def package_on_disk(module: str) -> Package | None:
    """As `package_of`, looked up anew and not kept."""
    found = _find_package(import_root(module))
    return None if found is None else found.package


def import_root(module: str) -> str:
    """The shortest leading part of a name that one distribution owns: `jax`, `google.protobuf`."""
    name, _, rest = module.partition(".")
    while rest and _is_namespace(_spec(name)):
        head, _, rest = rest.partition(".")
        name = f"{name}.{head}"
    return name


def still_current(package: Package) -> bool:
    """Whether that package is still on the disk; costs one `stat` of its RECORD.

    A package that was not found by this process is not current.
    """
    mine = [found for found in list(_found.values()) if found.package == package]
    return bool(mine) and all(_unchanged(found) for found in mine)


def changed_since_first_seen() -> list[tuple[Package, Package | None]]:
    """Packages that differ from what `package_of` returned: its result, and what is there now.

    Each change is reported once; `package_of` then returns the new package. None is a package
    that is gone. Costs one system call for each package that was found.
    """
    changes: dict[Package, Package | None] = {}
    for root, found in list(_found.items()):
        if root != found.root or _unchanged(found):
            continue
        new = _find_package(root)
        _replace(root, new)
        package = None if new is None else new.package
        if package != found.package:
            changes[found.package] = package
    return list(changes.items())


def _replace(root: str, new: _FoundPackage | None) -> None:
    """Forgets what was found for the modules of a package, and keeps what is there now."""
    with _lock:
        for name in [name for name, one in _found.items() if one.root == root]:
            del _found[name]
        if new is not None:
            _found[root] = new


def describe_change(old: Package, new: Package | None) -> str:
    """What happened to a package on disk, as a sentence without its full stop."""
    if new is None:
        return f"{old.name} {old.version} is no longer installed"
    if new.version == old.version:
        return f"{old.name} {old.version} was installed again with other files"
    versions = [package.version or "no version" for package in (old, new)]
    return f"{old.name} was changed from {versions[0]} to {versions[1]}"


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
    """The owners of a file, or of a folder (with `/` at its end): the last installed first."""
    site = site_folder(path)
    if site is None or is_local_file(path):
        return []
    inside = path[len(site) + 1 :].replace(os.sep, "/")
    found = []
    for metadata in owners(site, inside):
        if metadata.record is not None:
            state = file_stamp(metadata.record)
            package = _recorded_package(metadata, state)
        else:
            state = file_stamp(metadata.path)
            package = Package(*describe(metadata), digest_of_files(_package_folder(path)))
        found.append(_FoundPackage(package, root, (state,)))
    if not found and not path.endswith("/") and file_stamp(path).size >= 0:
        bare = Package(root, "", digest_of_files(_package_folder(path)))
        return [_FoundPackage(bare, root, (file_stamp(path), file_stamp(site)))]
    return found


@cache
def _recorded_package(metadata: Metadata, record: FileStamp) -> Package:
    """A distribution with a RECORD; its modules share one look at it."""
    return Package(*describe(metadata), digest_of_record(record.path))


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


_METADATA_SUFFIXES: Final = (".dist-info", ".egg-info")
_HEADERS: Final = ("METADATA", "PKG-INFO")
_HEADER_BYTES: Final = 4096
_OUTSIDE_PREFIXES: Final = (b"..", b"/", b'"..', b'"/')
_BINARY_SUFFIXES: Final = (".so", ".pyd", ".dll", ".dylib")


class FileStamp(NamedTuple):
    """The state of a file; a changed file has another stamp.

    Attributes:
        path: the file.
        mtime_ns, size: as `os.stat` returns them; both -1 for a file that does not exist.
    """

    path: str
    mtime_ns: int
    size: int


class Metadata(NamedTuple):
    """Where a distribution is described.

    Attributes:
        path: its `.dist-info` or `.egg-info`.
        record: its RECORD file; None where it has none, such as the packages of Debian.
    """

    path: str
    record: str | None


def file_stamp(path: str) -> FileStamp:
    """How a file looks now; costs one system call."""
    try:
        found = os.stat(path)
    except OSError:
        return FileStamp(path, -1, -1)
    return FileStamp(path, found.st_mtime_ns, found.st_size)


def owners(site: str, inside: str) -> list[Metadata]:
    """The distributions in folder `site` that put a file there, the last installed first.

    Args:
        site: a `site-packages` folder.
        inside: a file's path below it, with `/`; or a folder's, with `/` at its end.
    """
    top = inside.split("/", maxsplit=1)[0].partition(".")[0]
    names = sorted(_metadata_names(site), key=lambda name: (_name_distance(name, top), name))
    row = b"\n" + os.fsencode(inside) + (b"" if inside.endswith("/") else b",")
    found: list[Metadata] = []
    unrecorded: list[Metadata] = []
    nearest = 0
    for name in names:
        if found and _name_distance(name, top) > nearest and not inside.endswith("/"):
            break  # one file has one owner, and the likely ones were read first
        nearest = _name_distance(name, top)
        path = os.path.join(site, name)
        record = os.path.join(path, "RECORD")
        rows = _read(record)
        if rows is None:
            unrecorded.append(Metadata(path, None))
        elif row in b"\n" + rows:
            found.append(Metadata(path, record))
    if found:
        return sorted(found, key=lambda one: -file_stamp(one.record or "").mtime_ns)
    return [one for one in unrecorded if _claims_module(one, top)]


def describe(metadata: Metadata) -> tuple[str, str]:
    """Name and version of a distribution."""
    folder = os.path.basename(metadata.path)
    name, _, version = folder.rpartition(".")[0].partition("-")
    headers: dict[bytes, str] = {}
    for line in _read_header(metadata.path).split(b"\n"):
        key, _, value = line.partition(b":")
        if key in (b"Name", b"Version"):
            headers.setdefault(key, value.strip().decode(errors="replace"))
    return headers.get(b"Name", name), headers.get(b"Version", version.partition("-")[0])


def requirements(module: str) -> frozenset[str]:
    """Normalized names of all that the distribution of a module says it needs, on any condition."""
    spec = _spec(import_root(module))
    path = (spec.origin if spec is not None else None) or ""
    site = site_folder(path)
    if site is None:
        return frozenset()
    inside = path[len(site) + 1 :].replace(os.sep, "/")
    return frozenset(
        normalized_name(name)
        for metadata in owners(site, inside)
        for name in re.findall(r"(?mi)^Requires-Dist: *([\w.-]+)", _headers(metadata.path))
    )


def is_required(module: str, by: str) -> bool:
    """Whether the distribution of one module says that it needs that of another."""
    package = package_of(module)
    return package is not None and normalized_name(package.name) in requirements(by)


def digest_of_record(record: str) -> bytes:
    """Sixteen bytes over the rows of a RECORD that name files inside the package.

    Left out are the rows that differ between two environments with the same wheel: of scripts,
    which name the interpreter, of compiled files, and of the metadata.
    """
    rows = (_read(record) or b"").splitlines()
    inside = [
        row for row in rows if not row.startswith(_OUTSIDE_PREFIXES) and b"__pycache__/" not in row
    ]
    own = b"\n".join(sorted(row for row in inside if b".dist-info/" not in row))
    return blake2b(own, digest_size=16).digest()


def digest_of_files(path: str) -> bytes:
    """Sixteen bytes over name, size and time of the code files at or below a path.

    For what has no RECORD. The time is in whole seconds, as archives keep it: two machines with
    the same package of a Linux distribution agree.
    """
    digest = blake2b(digest_size=16)
    for file in [path] if os.path.isfile(path) else sorted(_code_files(path)):
        found = file_stamp(file)
        shown = os.path.relpath(file, os.path.dirname(path))
        digest.update(f"{shown},{found.size},{found.mtime_ns // 10**9}\n".encode(errors="replace"))
    return digest.digest()


def _code_files(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            if name.endswith((".py", *_BINARY_SUFFIXES)) or ".so." in name:
                yield os.path.join(parent, name)


def _metadata_names(site: str) -> list[str]:
    try:
        return [name for name in os.listdir(site) if name.endswith(_METADATA_SUFFIXES)]
    except OSError:
        return []


def normalized_name(name: str) -> str:
    """The name of a distribution in the spelling that all of its spellings have in common."""
    return name.lower().replace("-", "_").replace(".", "_")


def _name_distance(folder: str, top: str) -> int:
    """How far a distribution's name is from that of a module: 0 equal, 1 similar, 2 other."""
    ours = normalized_name(folder.rpartition(".")[0].partition("-")[0])
    theirs = normalized_name(top)
    if ours == theirs:
        return 0
    return 1 if theirs in ours or ours in theirs else 2


def _claims_module(metadata: Metadata, top: str) -> bool:
    """What has no RECORD may have a list of modules; else its name has to do."""
    listed = _read(os.path.join(metadata.path, "top_level.txt"))
    if listed is None:
        return _name_distance(os.path.basename(metadata.path), top) == 0
    return os.fsencode(top) in listed.split()


def _headers(path: str) -> str:
    """All that a distribution's metadata says before its description."""
    return _read_header(path, -1).partition(b"\n\n")[0].decode(errors="replace")


def _read_header(path: str, count: int = _HEADER_BYTES) -> bytes:
    """The first bytes of a distribution's metadata, which may be a file or a folder; -1: all."""
    for name in _HEADERS:
        try:
            with open(os.path.join(path, name), "rb") as file:
                return file.read(count)
        except NotADirectoryError:
            return (_read(path) or b"")[: count if count >= 0 else None]
        except OSError:
            continue
    return b""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None
