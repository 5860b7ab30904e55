"""The local server that starts by itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd_protocol.network.local_server import LocalServerFiles, make_private_directory
from tests.end_to_end.gates import advice
from tests.end_to_end.terminals import TerminalProcess
from tests.live_server import source_environment

pytestmark = pytest.mark.own_server  # each starts its own

CALL = """
from jaxd import persistent_call

@persistent_call
def double(x):
    return x * 2

print(float(double(21.0)))
"""


@pytest.fixture
def files(runtime: Path) -> Iterator[LocalServerFiles]:
    """Where this environment's local server would be; it is stopped with the test."""
    found = LocalServerFiles.of_this_environment()
    yield found
    stop_and_wait(found.control)


def command(*arguments: str, env: dict[str, str]) -> str:
    """What `jaxd …` prints; it has to succeed."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_processes_that_race_start_one_server(runtime: Path, files: LocalServerFiles) -> None:
    """In a fresh environment; each gets its answer, and says nothing into a pipe."""
    env = source_environment(runtime)
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", CALL],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    assert [process.communicate() for process in racing] == [("42.0\n", "")] * 4
    assert Path(files.log).read_text().count(" worker_started ") == 1
    status = json.loads(command("status", "--json", env=env))
    assert (status["worker"]["calls"], status["worker"]["traces"]) == (4, 1)
    assert _argument(status["host"]["pid"], "--idle-timeout-s") == "3600"
    assert os.stat(files.directory).st_mode & 0o777 == 0o700

    command("stop", env=env)
    assert send_request(files.control, {"ask": "status"}) is None
    assert not os.path.exists(files.socket)


def _argument(pid: int, name: str) -> str:
    """What stands behind `name` on the command line of a process."""
    told = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return told[told.index(name) + 1]


@pytest.mark.slow
def test_on_a_terminal_it_says_so_and_where_its_log_is(
    runtime: Path, files: LocalServerFiles
) -> None:
    """One line; the socket file of a server that was killed is no obstacle."""
    make_private_directory(files.directory)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(files.socket)
    with TerminalProcess(CALL, [], source_environment(runtime)) as terminal:
        assert terminal.end() == (0, "42.0\n")
    first = terminal.said.splitlines()[0]
    assert first == f"jaxd: starting a local server (log: {files.log})"


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(runtime: Path, files: LocalServerFiles) -> None:
    """By the next call of a client that was connected to it."""
    program = """
import os, signal, sys
from jaxd import persistent_call
double = persistent_call(lambda x: x * 2)
print(float(double(1.0)), flush=True)
sys.stdin.readline()
print(float(double(2.0)))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=source_environment(runtime),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "2.0\n"
        status = send_request(files.control, {"ask": "status"})
        assert status is not None
        os.kill(status["host"]["pid"], 9)
        said, _ = process.communicate("\n")
    assert said == "4.0\n"


def test_a_server_that_cannot_start_is_quoted(runtime: Path) -> None:
    """The error carries the end of the log, and the next thing to do."""
    program = (
        "import jaxd\ntry: jaxd.connect()\nexcept jaxd.errors.ServerStartFailed as e: print(e)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(runtime, JAXD_TOKEN_FILE=str(runtime / "missing")),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"cannot read the token file {runtime}/missing" in said
    assert "jaxd serve" in advice(said)


def test_without_the_server_extra_both_ways_out_are_named(runtime: Path) -> None:
    """Install it, or name a server."""
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "import jaxd\n"
        "try: jaxd.connect()\n"
        "except jaxd.errors.NoServer as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(runtime),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "pip install 'jaxd[server]'" in advice(said)
    assert "JAXD_SERVER" in advice(said)
