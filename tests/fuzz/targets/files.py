"""What is read from files, and from the lines that people write."""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import patch

from jaxd.cli import lockfile
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.network import tokens
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache.record_file import InvalidRecord, encode, read_file, read_header
from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.disk_cache.records import CallRecord
from tests.fuzz.examples import MANIFEST, SKELETON
from tests.fuzz.target import Target


@cache
def folder() -> str:
    """A folder of this process, which goes when it ends."""
    path = tempfile.mkdtemp(prefix="jaxd-fuzz-", dir=os.environ.get("FUZZ_FOLDER", "/tmp"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.mkdir(f"{path}/jaxd")
    return path


def _written(name: str, data: bytes) -> str:
    path = f"{folder()}/{name}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


def _record(data: bytes) -> None:
    path = _written("record", data)
    for read in (
        lambda: read_header(path, check=True),
        lambda: read_file(path, "calls", b"n" * 16, "target"),
    ):
        with suppress(InvalidRecord):
            read()


def _forged_record(data: bytes) -> None:
    """With digests that fit, as somebody makes them who can write there."""
    pieces = encode("calls", b"n" * 16, "target", None, b"")
    import hashlib

    prefix = pieces[0][:12] + struct.pack("!Q", len(data))
    digest = hashlib.blake2b(prefix + data, digest_size=16).digest()
    path = _written("forged", prefix + digest + data)
    record = read_file(path, "calls", b"n" * 16, "target")
    CallRecord.from_content(record.content)


def _lockfile(data: bytes) -> None:
    """With a digest that fits."""
    body = zlib.compress(data, 1)
    whole = lockfile._MAGIC + lockfile._digest(body) + body
    lockfile.read_lockfile(_written("lockfile", whole))


def _lockfile_of(content: Any) -> bytes:
    body = zlib.compress(dump_literal(content))
    return lockfile._MAGIC + lockfile._digest(body) + body


def _raw_lockfile(data: bytes) -> None:
    lockfile.read_lockfile(_written("lockfile", data))


def _address(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    address = Address.parse(text)
    assert Address.parse(str(address)) == address


def _config(data: bytes) -> None:
    _written("jaxd/config.toml", data)
    with patch.dict(os.environ, XDG_CONFIG_HOME=folder()):
        Settings.resolve()


def _token(data: bytes) -> None:
    token = tokens.read_token_file(_written("token", data))
    assert token.isprintable()
    assert token == token.strip()


KEPT = CallRecord(
    *("f", b"k" * 16, b"f" * 16, b"f" * 16, SKELETON, (), (), ("x",), b"p" * 16, None),
    *(ResultLayout.of(SKELETON, (0,)), 0.1, 0.2, 1e9, b"e" * 16, "uid:1"),
)

FILES: dict[str, Target] = {
    "record": Target(
        _record,
        [b"".join(encode("calls", b"n" * 16, "target", (("a", 1),), b"p" * n)) for n in (0, 9999)],
    ),
    "forged record": Target(
        _forged_record,
        [encode("calls", b"n" * 16, "target", KEPT.to_content(), b"")[2]],
        # which is what a program cache expects of a record
        (InvalidRecord, JaxdError, KeyError, TypeError, ValueError),
    ),
    "lockfile": Target(
        _lockfile,
        [
            dump_literal((lockfile._python(), (), ())),
            dump_literal(
                (
                    lockfile._python(),
                    ((b"d" * 16, b"code"),),
                    (("f", b"k" * 16, b"", MANIFEST, b"d" * 16, ((SKELETON, (), ()),), ("x",)),),
                )
            ),
        ],
    ),
    "raw lockfile": Target(_raw_lockfile, [_lockfile_of((lockfile._python(), (), ()))]),
    "address": Target(
        _address,
        [
            b"unix:///run/x.sock",
            b"tcp://[::1]:18861",
            b"tls://h:1#sha256=" + b"0f" * 32,
            b"ssh://user@host:22/p",
            b"tcp://h:1?insecure=1",
            b"unix:///run/x.sock?uid=999",
        ],
    ),
    "configuration file": Target(
        _config, [b'server = "tcp://h:1"\ntoken_file = "~/x"\nautostart = false\n']
    ),
    "token file": Target(_token, [b"0123456789abcdef" * 4 + b"\n", b" \xff\n"]),
}
