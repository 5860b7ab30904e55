"""`pytest --on-server`: the tests of clients against a server that runs already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live_server import ROOT, TOKEN, LiveServer

SUITE = """\
import jaxd
import pytest


def test_a_call(live, client):
    assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    done = live.run("import jaxd; print(jaxd.connect().info()['address'])")
    assert done.stdout.strip() == live.unix


def test_what_only_an_own_server_has(live):
    live.worker_pid()


def test_a_server_that_is_started(start_live):
    start_live()


@pytest.mark.own_server
def test_an_owner():
    raise AssertionError


@pytest.mark.counts_builds
def test_a_count():
    raise AssertionError


@pytest.mark.libraries("only_here")
def test_a_library():
    raise AssertionError


@pytest.mark.libraries("jax")
def test_a_library_that_both_have():
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Tests that need more and less of a server, with the fixtures of these here."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "only_here.py").touch()
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    return tmp_path


def run(suite: Path, address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs them against that server."""
    words = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(suite), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *words, "--on-server", address, str(suite)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAXD_")}
    return subprocess.run(
        command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.soak
@pytest.mark.own_server
def test_they_use_the_server_that_is_named(live: LiveServer, suite: Path) -> None:
    """Those that want more than that are skipped, and say why."""
    with_one = live.run("import jaxd; jaxd.persistent_call(lambda x: x)(1.0)")
    assert with_one.returncode == 0, with_one.stderr
    done = run(suite, live.tls, JAXD_TOKEN=TOKEN, PYTHONPATH=str(suite))
    assert "2 passed, 5 skipped" in done.stdout, done.stdout + done.stderr
    assert (
        "needs a server of its own, and --on-server names one (for its worker_pid)" in done.stdout
    )
    assert "counts builds, and the server of --on-server has been used before" in done.stdout
    assert "the server of --on-server has no only_here" in done.stdout


@pytest.mark.slow
@pytest.mark.own_server
def test_a_server_that_is_not_there_ends_them_at_once(suite: Path) -> None:
    """With the client's own words, and not once for each test."""
    done = run(suite, "unix:///nowhere/s.sock")
    assert done.returncode == 4
    assert "no server answers at unix:///nowhere/s.sock" in done.stdout + done.stderr
