"""The demo as a user runs it, with few epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.own_server,  # it starts its own
    pytest.mark.timeout(180),  # five processes, and the server's two
    pytest.mark.skipif(  # looked for and not imported, which takes seconds
        not all(map(find_spec, ("sklearn", "matplotlib"))), reason="the demo extra is not installed"
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
        "MPLCONFIGDIR": str(directory / "matplotlib"),
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", "demo", "--json", "--epochs", "4"],
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
    """The counters show it, the network learns, the plot is there, and the server is gone."""
    finished = run_demo(tmp_path, runtime)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    spent = report["counters"]["second_process"]
    assert (spent["traces"], spent["compiles"]) == (0, 0)
    assert spent["calls"] == report["counters"]["before"]["calls"] > 0
    assert report["complaints"] == []
    assert Path(report["plot"]) == tmp_path / "demo-output" / "digits.png"
    assert list((runtime / "jaxd").iterdir()) == []
