"""What tests keep, and where it lies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxd_server.cache.directory import Kind
from jaxd_server.cache.disk_usage import Usage, usage
from jaxd_server.cache.store import Store, open_store

OpenStore = Callable[..., Store]

TARGET = "0123456789abcdef"
OTHER = "fedcba9876543210"


def open_here(
    root: Path | str, target: str = TARGET, disk_bytes: int = 1 << 30, of_one: int = 0
) -> Store:
    """A store below `root`, which has to be one that can be trusted."""
    facts = {"jax": "1.2.3"}
    store = open_store(target, facts, str(root), disk_bytes, of_one)
    assert store is not None
    return store


def usage_of(store: Store) -> Usage:
    """What lies on disk for the target of a store."""
    above, target = os.path.split(store.folder)
    return usage(os.path.dirname(above), target)


def file_of(root: Path, kind: Kind, name: bytes, target: str = TARGET) -> Path:
    """Where a record lies."""
    return root / "v2" / target / kind / name.hex()


def call(name: str = "step", **fields: Any) -> tuple[tuple[str, Any], ...]:
    """The content of a call's record."""
    usual: dict[str, Any] = {
        "name": name,
        "key": b"\x11" * 16,
        "fingerprint": b"\x22" * 16,
        "skeleton": b"",
        "parameters": ("x",),
        "program": b"\x33" * 16,
        "trace_s": 0.25,
        "compile_s": 1.0,
        "created": 1_700_000_000.0,
        "obstacle": None,
        "environment": b"\x44" * 8,
        "principal": "ann",
        "form": (),
    }
    return tuple((usual | fields).items())


def keep_call(store: Store, record: bytes, /, *, size: int = 10_000, **fields: Any) -> None:
    """Keeps a call, and a program that only it has unless `program` names one."""
    program = fields.setdefault("program", b"p" + record)
    store.write("programs", program, (), os.urandom(size))
    store.write("calls", record, call(**fields))
    assert store.flush(10)


def unused_for(seconds: float, *files: Path) -> None:
    """Makes files look as if they were used last so long ago."""
    at = time.time() - seconds
    for file in files:
        os.utime(file, (at, at))
