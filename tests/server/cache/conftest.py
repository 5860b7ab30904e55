"""Stores in folders of their own, and processes that use the same folders."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxd_server.cache.store import Store
from tests.server.cache.keeping import TARGET, OpenStore, open_here


@pytest.fixture
def root(runtime: Path) -> Path:
    """A cache folder that is not made yet."""
    return runtime / "cache"


@pytest.fixture
def open_(root: Path) -> Iterator[OpenStore]:
    """Opens stores that are closed with the test; takes what `open_here` takes."""
    stores: list[Store] = []

    def open_one(target: str = TARGET, disk_bytes: int = 1 << 30, of_one: int = 0) -> Store:
        stores.append(open_here(root, target, disk_bytes, of_one))
        return stores[-1]

    yield open_one
    for store in stores:
        assert store.close()


@pytest.fixture
def store(open_: OpenStore) -> Store:
    """A store with the usual options."""
    return open_()


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Says which events were warned of since the start of the test."""
    caplog.set_level(logging.INFO, logger="jaxd")
    return lambda: [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@pytest.fixture
def start_child(runtime: Path, root: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts processes that run a program with a `store` on the same folder."""
    children: list[subprocess.Popen[str]] = []
    head = f"from tests.server.cache.keeping import *\nstore = open_here({str(root)!r})\n"

    def start(program: str) -> subprocess.Popen[str]:
        here = Path(__file__).resolve().parents[3]
        child = subprocess.Popen(
            [sys.executable, "-c", head + program],
            cwd=here,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
