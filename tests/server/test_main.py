from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_server.__main__ import main


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """Leaves the logger as it was found."""
    logger = logging.getLogger("jaxd")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_a_server_that_cannot_start_says_why_in_one_line(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit code 1 and without a traceback."""
    assert main(["--listen", "tcp://127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jaxd: tcp://127.0.0.1:0 without a token")
    assert said.count("\n") == 1


UNSTARTABLE = """
from jaxd_server.__main__ import main
raise SystemExit(main([], worker_command=["/no/such/program"]))
"""


def test_a_worker_that_cannot_be_started_is_named(runtime: Path) -> None:
    """After as many attempts as for one that ends at once; the server goes on."""
    command = [sys.executable, "-c", UNSTARTABLE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "worker_broken" in line:
                break
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
    assert server.returncode == 0
    assert sum("worker_not_started" in line for line in said) == 5
    assert "/no/such/program" in said[-1]
