from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache import record_file
from jaxd_server.cache.record_file import (
    InvalidRecord,
    Record,
    encode,
    read_file,
    read_header,
    write_file,
)

CONTENT = (("name", "f"), ("shape", (1, 2.5, b"\x00", None)))


def write(path: Path, content: Any = CONTENT, payload: bytes = b"program") -> bytes:
    """Writes the record `k`, `n` of the target `t`; what the file holds then."""
    write_file(str(path), encode("k", b"n", "t", content, payload))
    return path.read_bytes()


def read(path: Path, *, payload: bool = True) -> Record:
    """Reads it again."""
    return read_file(str(path), "k", b"n", "t", payload=payload)


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 100_000, os.urandom(100_000)])
def test_what_was_written_is_read(tmp_path: Path, payload: bytes) -> None:
    """Whether it can be made smaller or not."""
    write(tmp_path / "f", payload=payload)
    assert read(tmp_path / "f") == Record(CONTENT, payload)


def test_what_can_be_made_smaller_is(tmp_path: Path) -> None:
    """Programs are; what jax has compressed is left. What is no literal is refused at once."""
    assert len(write(tmp_path / "f", payload=b"x" * 100_000)) < 10_000
    dense = os.urandom(100_000)
    assert dense in write(tmp_path / "f", payload=dense)
    with pytest.raises(TypeError):
        encode("k", b"n", "t", {"a": 1}, b"")


def test_the_header_is_read_without_the_payload(tmp_path: Path) -> None:
    """A broken payload does not keep anybody from what stands before it."""
    data = write(tmp_path / "f", payload=os.urandom(1000))
    (tmp_path / "f").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert read(tmp_path / "f", payload=False) == Record(CONTENT, b"")
    assert read_header(str(tmp_path / "f")).name == b"n"
    with pytest.raises(InvalidRecord, match="payload was changed"):
        read_header(str(tmp_path / "f"), check=True)


@pytest.mark.parametrize("payload", [b"program", b"many words " * 10_000], ids=["plain", "packed"])
def test_one_bit_anywhere_is_noticed(tmp_path: Path, payload: bytes) -> None:
    """Each bit of a small file; some of one whose payload is packed, before it is unpacked."""
    path = tmp_path / "f"
    data = write(path, payload=payload)
    bits = range(len(data) * 8)
    for bit in bits if len(payload) < 100 else random.Random(1).sample(bits, 200):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(InvalidRecord):
            read(path)


def test_a_file_of_another_length_is_noticed(tmp_path: Path) -> None:
    """Cut off at each byte, also when only the header is asked for; or with something added."""
    path = tmp_path / "f"
    data = write(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        for payload in (True, False):
            with pytest.raises(InvalidRecord):
                read(path, payload=payload)
    path.write_bytes(data + b"\0")
    with pytest.raises(InvalidRecord, match="something was added"):
        read(path)


@pytest.mark.parametrize("wrong", [("j", b"n", "t"), ("k", b"m", "t"), ("k", b"n", "s")])
def test_the_file_of_another_record_is_not_believed(
    tmp_path: Path, wrong: tuple[str, bytes, str]
) -> None:
    """Neither of another kind, nor another name, nor another target."""
    write(tmp_path / "f")
    with pytest.raises(InvalidRecord, match="another record"):
        read_file(str(tmp_path / "f"), *wrong)


def test_another_format_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a length that cannot be: no memory is taken for it."""
    monkeypatch.setattr(record_file, "FORMAT", 3)
    write(tmp_path / "f")
    monkeypatch.undo()
    with pytest.raises(InvalidRecord, match="it has format 3"):
        read(tmp_path / "f")
    start = record_file._PREFIX.pack(record_file._MAGIC, record_file.FORMAT, 1 << 62) + bytes(16)
    (tmp_path / "f").write_bytes(start)
    with pytest.raises(InvalidRecord, match="cut off"):
        read(tmp_path / "f")


def test_a_record_can_be_signed(tmp_path: Path) -> None:
    """All that the header says is signed, and it is read like any other record."""
    signed: list[bytes] = []

    def sign(header: bytes) -> bytes:
        signed.append(header)
        return b"by somebody"

    path = str(tmp_path / "f")
    write_file(path, encode("k", b"n", "t", CONTENT, b"program", sign))
    assert read(tmp_path / "f") == Record(CONTENT, b"program")
    header = read_header(path)
    assert header.signature == b"by somebody"
    assert signed == [dump_literal(tuple(header[:-1]))]
    write(tmp_path / "f")
    assert read_header(path).signature == b""


def test_links_folders_and_pipes_are_not_files(tmp_path: Path) -> None:
    """None is followed, and nobody waits for the other end of a pipe."""
    write(tmp_path / "f")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(InvalidRecord):
            read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    """What lies there is code that runs."""
    write(tmp_path / "f")
    (tmp_path / "f").chmod(mode)
    with pytest.raises(InvalidRecord, match="others can write"):
        read(tmp_path / "f")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """Whatever its mode."""
    write(tmp_path / "f")
    os.chown(tmp_path / "f", 65534, -1)
    with pytest.raises(InvalidRecord, match="another user"):
        read(tmp_path / "f")


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_we_can_read_a_file(tmp_path: Path, umask: int) -> None:
    """Whatever the umask."""
    before = os.umask(umask)
    try:
        write(tmp_path / "f")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there is whole, and no temporary file stays."""
    write(tmp_path / "f", payload=b"old")

    def fail(*_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "f", payload=b"new")
    assert read(tmp_path / "f").payload == b"old"
    assert os.listdir(tmp_path) == ["f"]
