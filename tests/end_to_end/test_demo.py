"""The demo as a user runs it, with few epochs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.own_server,  # it starts its own
    pytest.mark.timeout(180),  # four processes, and the server's two
    pytest.mark.skipif(  # looked for and not imported, which takes seconds
        find_spec("sklearn") is None, reason="the demo extra is not installed"
    ),
]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A short directory for sockets; that of pytest can be too long for them."""
    with tempfile.TemporaryDirectory(prefix="jaxd-test-") as directory:
        yield Path(directory)


def run_demo(directory: Path, runtime: Path) -> subprocess.CompletedProcess[str]:
    """Runs `jaxd demo` in a process of its own that touches nothing outside the two directories."""
    variables = {
        "XDG_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", "demo", "--epochs", "4"],
        cwd=directory,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.soak
def test_the_second_process_neither_traces_nor_compiles_and_nothing_is_left_behind(
    tmp_path: Path, runtime: Path
) -> None:
    """The table shows it, the network learns, and the server is gone."""
    finished = run_demo(tmp_path, runtime)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    columns = r" +(\d+\.\d\d) s +(\d+\.\d\d) s +(\d+\.\d\d) s +(\S+) +(\S+) +9\d\.\d% +(yes|no)"
    rows = re.findall(rf"^(.+process|jax\.jit){columns}$", finished.stdout, re.MULTILINE)
    assert [(name, *row[3:]) for name, *row in rows] == [
        ("jaxd, first process", "1", "1", "no"),
        ("jaxd, second process", "0", "0", "no"),
        ("jax.jit", "-", "-", "yes"),
    ]
    assert all(float(ready) < float(first) <= float(end) for _, ready, first, end, *_ in rows)
    assert list(tmp_path.iterdir()) == []
    assert list((runtime / "jaxd").iterdir()) == []
