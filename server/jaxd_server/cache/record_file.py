"""One record as one file: complete, unchanged and of the right name, or it is rejected.

    magic, format, length of the header | digest of these and the header | header | payload

The header is a literal: (kind, name, target, content, how the payload is packed, its length, its
length in the file, its digest, a signature of all these or nothing). It can be read and trusted
without the payload.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import shutil
import stat
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NamedTuple

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pytree.literals import dump_literal, load_literal

FORMAT: Final = 2
"""Changes with the layout of a file; a file of another format is not read."""

_MAGIC: Final = b"\x89jaxd\r\n\x1a"  # as in PNG: shows a transfer in text mode
_PREFIX: Final = struct.Struct("!8sIQ")
_DIGEST: Final = 16
_START: Final = _PREFIX.size + _DIGEST
_MOST_HEADER: Final = 1 << 28
_SAMPLE: Final = 1 << 16
_WORTH_PACKING: Final = 0.9
# Errors of the file itself, as opposed to temporary ones.
_UNREADABLE_ERRNOS: Final = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO}


Sign = Callable[[bytes], bytes]
"""The signature of some bytes by a secret key."""


class InvalidRecord(Exception):
    """The file is not what was written under this name: it can only be removed."""


class Record(NamedTuple):
    """What is kept under one name.

    Attributes:
        content: a literal as in `jaxd_protocol.pytree.literals`.
        payload: opaque bytes; empty when only the header was read.
    """

    content: Any
    payload: bytes


_TYPES: Final = (str, bytes, str, str, int, int, bytes, bytes)
"""Of the fields of a `Header` but its content."""


class Header(NamedTuple):
    """The fields before the payload, in this order.

    Attributes:
        kind: the folder.
        name: what the record is found by.
        target: what the record is good for, as `Target.digest`.
        content: see `Record`.
        packing: how the payload is kept: `"zlib"` or `"none"`.
        length: bytes of the payload.
        stored: bytes of it in the file.
        digest: BLAKE2b of those.
        signature: of the fields before it, in a store that is shared; else empty.
    """

    kind: str
    name: bytes
    target: str
    content: Any
    packing: str
    length: int
    stored: int
    digest: bytes
    signature: bytes = b""


def encode(
    kind: str,
    name: bytes,
    target: str,
    content: Any,
    payload: bytes,
    sign: Sign | None = None,
) -> tuple[bytes, ...]:
    """The pieces of the file that `read_file` takes.

    Args:
        kind: see `Header`, as the next three.
        name: by which it is found.
        target: what it is good for.
        content: a literal.
        payload: opaque bytes.
        sign: signs the header; None: it has no signature.

    Raises:
        TypeError: when `content` is not a literal.
    """
    stored, packing = _packed(payload)
    header = Header(kind, name, target, content, packing, len(payload), len(stored), _hash(stored))
    return encode_stored(header, stored, sign)


def encode_stored(header: Header, stored: bytes, sign: Sign | None) -> tuple[bytes, ...]:
    """As `encode`, of a record whose payload is packed already.

    Args:
        header: of the record; its signature does not count.
        stored: its payload as it is kept; empty where only the other pieces are wanted.
        sign: as of `encode`.
    """
    header = header._replace(signature=b"" if sign is None else _signature(header, sign))
    data = dump_literal(tuple(header))
    prefix = _PREFIX.pack(_MAGIC, FORMAT, len(data))
    return prefix, _hash(prefix, data), data, stored


def _packed(payload: bytes) -> tuple[bytes, str]:
    """The payload as it is kept; one whose sample does not compress is left as it is."""
    sample = payload[:_SAMPLE]
    if len(zlib.compress(sample, 1)) < _WORTH_PACKING * len(sample):
        packed = zlib.compress(payload, 1)
        if len(packed) < len(payload):
            return packed, "zlib"
    return payload, "none"


def _hash(*pieces: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def read_file(
    path: str,
    kind: str,
    name: bytes,
    target: str,
    *,
    payload: bool = True,
    sign: Sign | None = None,
) -> Record:
    """The record in the file, when it is the one that was written under this name.

    Args:
        path: the file.
        kind: see `Header`, as the next two.
        name: that the header has to contain.
        target: that the header has to contain.
        payload: whether the payload is read and checked too.
        sign: signs the header: whoever wrote the file must have had the same; None: only this
            user, or root, can have written it.

    Raises:
        InvalidRecord: when it is anything else.
        OSError: when there is no such file, or it cannot be read now.
    """
    with _opened(path) as file:
        size = _size(os.fstat(file.fileno()), is_ours=sign is None)
        return read_record(file, size, kind, name, target, payload=payload, sign=sign)


def read_record(
    file: BinaryIO,
    size: int,
    kind: str,
    name: bytes,
    target: str,
    *,
    payload: bool = True,
    sign: Sign | None = None,
) -> Record:
    """As `read_file`, of a file that is open.

    Args:
        file: at its beginning.
        size: of all of it, in bytes.
        kind: see `read_file`, as the others.
        name: likewise.
        target: likewise.
        payload: likewise.
        sign: likewise.

    Raises:
        InvalidRecord: when it is anything else.
        OSError: when it cannot be read now.
    """
    header, stored = _read(file, size, payload=payload, sign=sign)
    if (header.kind, header.name, header.target) != (kind, name, target):
        raise InvalidRecord("it is the file of another record")
    return Record(header.content, _unpacked(header, stored) if payload else b"")


def read_stored(
    path: str, kind: str, name: bytes, target: str, *, payload: bool
) -> tuple[Header, bytes]:
    """As `read_file`, with the payload as it is kept; its digest is for who unpacks it to check."""
    header, stored = _read_own(path, payload=payload)
    if (header.kind, header.name, header.target) != (kind, name, target):
        raise InvalidRecord("it is the file of another record")
    return header, stored


def read_header(path: str, *, check: bool = False) -> Header:
    """The header of whatever record is in the file; with `check` its payload is checked too.

    Raises:
        InvalidRecord: when it is no whole record.
        OSError: when there is no such file, or it cannot be read now.
    """
    header, stored = _read_own(path, payload=check)
    if check:
        _unpacked(header, stored)
    return header


def _read_own(path: str, *, payload: bool) -> tuple[Header, bytes]:
    """What is in a file that only this user, or root, can have written."""
    with _opened(path) as file:
        return _read(file, _size(os.fstat(file.fileno()), is_ours=True), payload=payload)


def own_bytes(path: str, most: int) -> bytes:
    """The bytes of a file, not a record, that only this user, or root, can have written.

    Raises:
        InvalidRecord: when others can have written it, or it has more bytes than `most`.
        OSError: when there is no such file, or it cannot be read now.
    """
    with _opened(path) as file:
        if _size(os.fstat(file.fileno()), is_ours=True) > most:
            raise InvalidRecord("it is larger than any that this server writes")
        return file.read(most)


def _signature(header: Header, sign: Sign) -> bytes:
    return sign(dump_literal(tuple(header[:-1])))


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb", opener=_opener)
    except OSError as error:
        if error.errno in _UNREADABLE_ERRNOS:
            raise InvalidRecord(f"it cannot be opened: {error.strerror}") from error
        raise


def _read(
    file: BinaryIO, size: int, *, payload: bool, sign: Sign | None = None
) -> tuple[Header, bytes]:
    start = _exactly(file.read(_START), _START)
    length = _header_length(start, size)
    data = _exactly(file.read(length), length)
    header = _header(start, data)
    if sign is not None and not hmac.compare_digest(_signature(header, sign), header.signature):
        raise InvalidRecord("it is not signed with the key of this store")
    if size != _START + length + header.stored:
        raise InvalidRecord("it is cut off, or something was added")
    return header, _exactly(file.read(header.stored), header.stored) if payload else b""


def _opener(path: str, flags: int) -> int:
    """Opens without following a link or waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _size(status: os.stat_result, *, is_ours: bool) -> int:
    """The size of a file; `is_ours`: of one that only we, or root, can have written."""
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRecord("it is not a file")
    if is_ours and status.st_uid not in (0, os.geteuid()):  # root may do anything anyway
        raise InvalidRecord("it belongs to another user")
    if is_ours and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidRecord("others can write to it")
    return status.st_size


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise InvalidRecord("it is cut off")
    return data


def _header_length(start: bytes, size: int) -> int:
    magic, version, length = _PREFIX.unpack_from(start)
    if magic != _MAGIC:
        raise InvalidRecord("it is not a record")
    if version != FORMAT:
        raise InvalidRecord(f"it has format {version}, and this version of jaxd writes {FORMAT}")
    if length > min(size - _START, _MOST_HEADER):  # before memory is taken for it
        raise InvalidRecord("it is cut off")
    return int(length)


def _header(start: bytes, data: bytes) -> Header:
    if _hash(start[: _PREFIX.size], data) != start[_PREFIX.size :]:
        raise InvalidRecord("its header was changed")
    try:
        fields, end = load_literal(data, 0)
        header = Header(*fields)
    except (ProtocolError, TypeError) as error:
        raise InvalidRecord("its header cannot be read") from error
    if end != len(data) or tuple(map(type, (*header[:3], *header[4:]))) != _TYPES:
        raise InvalidRecord("its header cannot be read")
    return header


def _unpacked(header: Header, stored: bytes) -> bytes:
    if _hash(stored) != header.digest:
        raise InvalidRecord("its payload was changed")
    try:
        payload = zlib.decompress(stored) if header.packing == "zlib" else stored
    except zlib.error as error:
        raise InvalidRecord("its payload cannot be unpacked") from error
    if len(payload) != header.length:
        raise InvalidRecord("its payload cannot be unpacked")
    return payload


def remove_file(path: str) -> None:
    """Removes a file, or the folder that has taken its place; one that is gone is none.

    Raises:
        OSError: when it cannot be removed.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):  # somebody was faster
            os.unlink(path)


def write_file(path: str, pieces: tuple[bytes, ...], mode: int = 0o600) -> None:
    """Writes a file atomically, with that mode whatever the umask.

    Not synced to the disk: the digests detect what a power cut leaves.

    Raises:
        OSError: when it cannot be written; nothing is left behind.
    """
    temporary = f"{os.path.dirname(path)}/.{os.getpid()}-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.writelines(pieces)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
