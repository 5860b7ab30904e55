"""The fork server: what it forks has its modules, and where it must not, nothing is forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jaxd_protocol.packages.distributions import changed_since_first_seen
from jaxd_server.compilation.remote_build import builder_start
from jaxd_server.compilation.remote_build.builder_start import ForkServer, new_interpreter
from tests.fake_packages import FakeSite
from tests.server.staging import is_running, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

BUILDER = """
import os
import rates

def main(argument):
    os.write(argument["fd"], f"{rates.RATE} {argument['word']}".encode())
"""


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Forks processes that run `BUILDER`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of jax, which this process has used
        server = ForkServer("tr_builder")
    try:
        yield server
    finally:
        server.close()


def said(server: ForkServer, word: str = "it") -> tuple[str, int]:
    """What a started process writes, and its exit code."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = server.start({"word": word}, theirs.fileno())
        theirs.close()
        with ours.makefile() as file:
            return file.read(), process.wait()


@pytest.fixture
def rates(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """An installed package that `BUILDER` imports, and `BUILDER`."""
    site.install("tr-rates", "1", {"rates.py": "RATE = 1.0", "tr_builder.py": BUILDER})
    run = "import json, sys, tr_builder; tr_builder.main(json.loads(sys.argv[1]))"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    command = (sys.executable, "-P", "-c", run)
    monkeypatch.setattr(builder_start, "NEW_INTERPRETER", new_interpreter(command))
    return site


@pytest.mark.usefixtures("rates")
def test_each_start_has_its_own_argument_and_end() -> None:
    """They are as different as two interpreters."""
    with fork_server() as server:
        assert [said(server, "one"), said(server, "two")] == [("1.0 one", 0), ("1.0 two", 0)]


def test_where_a_package_has_changed_on_disk_a_new_interpreter_starts(rates: FakeSite) -> None:
    """Once the fork server has imported it, whoever asks."""
    with fork_server() as server:
        assert said(server) == ("1.0 it", 0)
        files = {"rates.py": "RATE = 20.0", "tr_builder.py": BUILDER}  # of another size: Python
        rates.install("tr-rates", "2", files)  # takes a compiled file for that of the same second
        assert said(server) == ("20.0 it", 0)
    changed_since_first_seen()  # it is no news for the tests that follow


@pytest.mark.usefixtures("rates")
def test_without_a_fork_server_a_new_interpreter_starts() -> None:
    """Whether it was closed or has ended by itself."""
    with fork_server() as server:
        server.close()
        assert said(server) == ("1.0 it", 0)


WORKER = """
import sys, threading
sys.path[:0] = {path!r}
from jaxd_server.compilation.remote_build.builder_start import ForkServer
from jaxd_server.runtime import logs
logs.configure("json", "worker")
server = ForkServer("json.tool")
threading.Event().wait()
"""


def test_it_ends_with_its_worker() -> None:
    """However that ends."""
    command = [sys.executable, "-c", WORKER.format(path=sys.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        line = next(line for line in worker.stderr if "fork_server_started" in line)
        pid = int(line.partition('"pid": ')[2].split(",")[0].strip("} \n"))
        assert is_running(pid)
        worker.send_signal(signal.SIGKILL)
    until(lambda: not is_running(pid))
