"""Disks that are full, read-only or slow, and clocks that jump."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxd import connect
from tests.end_to_end.steps import Steps, X, kill
from tests.faults.others import unharmed
from tests.faults.shim import Shim
from tests.live_server import LiveServer

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]

StartLive = Callable[..., LiveServer]


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("only root may mount a small disk, where the system lets it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def all_right(server: LiveServer, numbers: range) -> bool:
    steps = Steps()
    with connect(server.unix) as client:
        return all(
            np.array_equal(client.persistent_call(steps.make(n))(X), steps.make(n)(X))
            for n in numbers
        )


def test_the_disk_is_full(start_live: StartLive, runtime: Path) -> None:
    """Programs are not kept, with one line in the log; every answer is right."""
    with disk(runtime / "small", "size=96k") as folder:
        server = start_live("--cache-dir", str(folder))
        with unharmed(server, 1):
            assert all_right(server, range(12))
        kill(server)
        with unharmed(server, 1):
            assert all_right(server, range(12))
        assert server.close() == 0
    said = [line for line in server.lines if line.get("level") in ("warning", "WARNING")]
    assert len([line for line in said if "cache" in line["event"]]) <= 4


def test_the_disk_becomes_read_only(start_live: StartLive, runtime: Path) -> None:
    """What is there is loaded, what is new is not kept; every answer is right."""
    with disk(runtime / "small", "size=8m") as folder:
        server = start_live("--cache-dir", str(folder))
        with unharmed(server, 1):
            assert all_right(server, range(4))
        with connect(server.unix) as client:
            Steps().settle(client)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with unharmed(server, 1):
            assert all_right(server, range(8))
        kill(server)
        with unharmed(server, 1):
            assert all_right(server, range(8))
            with connect(server.unix) as client:
                assert client.statistics().executable_loads >= 4
        assert server.close() == 0


def test_the_disk_is_slow(start_live: StartLive, runtime: Path) -> None:
    """Each sync, rename and read takes a fifth of a second longer: warm calls do not wait."""
    shim = Shim(runtime)
    server = start_live(**shim.environment)
    with unharmed(server, 1):
        assert all_right(server, range(3))
        shim.set(drag_s=0.2)
        assert all_right(server, range(6))
        shim.set()


@pytest.mark.parametrize("jump_s", [-86_400, 86_400, -40 * 365 * 86_400])
def test_the_clock_jumps(start_live: StartLive, runtime: Path, jump_s: int) -> None:
    """A day back or ahead, or before 1990: deadlines, sessions and files on disk do not mind."""
    shim = Shim(runtime)
    server = start_live(**shim.environment)
    with connect(server.unix) as client:
        state = client.put(np.ones(1 << 15, np.float32))
        add = client.persistent_call(lambda x: x + 1, timeout_s=30)
        assert all_right(server, range(3))
        with unharmed(server, 1):
            shim.set(ahead_s=jump_s)
            assert all_right(server, range(5))
            assert float(np.asarray(add(state))[0]) == 2.0
        del state
        kill(server)
        assert client.statistics().epoch == 2
        with unharmed(server, 1):
            assert all_right(server, range(5))
            assert client.statistics().executable_loads >= 3
