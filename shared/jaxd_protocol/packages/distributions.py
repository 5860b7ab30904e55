"""Distributions in a folder of installed packages: who owns a file, and what is installed of it.

The standard library can tell too, but costs a fresh process more than ten milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

_METADATA_SUFFIXES: Final = (".dist-info", ".egg-info")
_HEADERS: Final = ("METADATA", "PKG-INFO")
_HEADER_BYTES: Final = 4096
_OUTSIDE_PREFIXES: Final = (b"..", b"/", b'"..', b'"/')
_BINARY_SUFFIXES: Final = (".so", ".pyd", ".dll", ".dylib")


class FileStamp(NamedTuple):
    """A file as it was when it was looked at; another one has another stamp.

    Attributes:
        path: the file.
        mtime_ns, size: what the system says of it; both -1 for a file that is not there.
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
            break  # one file has one owner, and the likely ones were asked first
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


def _normalized_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _name_distance(folder: str, top: str) -> int:
    """How far a distribution's name is from that of a module: 0 equal, 1 similar, 2 other."""
    ours, theirs = (
        _normalized_name(folder.rpartition(".")[0].partition("-")[0]),
        _normalized_name(top),
    )
    if ours == theirs:
        return 0
    return 1 if theirs in ours or ours in theirs else 2


def _claims_module(metadata: Metadata, top: str) -> bool:
    """What has no RECORD may have a list of modules; else its name has to do."""
    listed = _read(os.path.join(metadata.path, "top_level.txt"))
    if listed is None:
        return _name_distance(os.path.basename(metadata.path), top) == 0
    return os.fsencode(top) in listed.split()


def _read_header(path: str) -> bytes:
    """The first lines of a distribution's metadata, which may be a file or a folder."""
    for name in _HEADERS:
        try:
            with open(os.path.join(path, name), "rb") as file:
                return file.read(_HEADER_BYTES)
        except NotADirectoryError:
            return (_read(path) or b"")[:_HEADER_BYTES]
        except OSError:
            continue
    return b""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None
