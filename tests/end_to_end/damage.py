"""What can happen to a file."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Final


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    _flip(path, len(path.read_bytes()) // 2)


def flip_last(path: Path) -> None:
    _flip(path, -1)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def other_version(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("!I", 99) + data[12:])


def other_record(path: Path) -> None:
    shutil.copy(next(other for other in path.parent.iterdir() if other != path), path)


def other_kind(path: Path) -> None:
    shutil.copy(next((path.parent.parent / "environments").iterdir()), path)


def folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def link(path: Path) -> None:
    moved = path.rename(path.parent.parent / path.name)
    path.symlink_to(moved)


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def gone(path: Path) -> None:
    path.unlink()


DAMAGE: Final = (
    *(cut, cut_short, empty, flip, flip_last, zeros, other_version, other_record),
    *(other_kind, folder, link, open_to_all, gone),
)
