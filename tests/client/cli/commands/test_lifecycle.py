from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands import lifecycle
from jaxd.connection import discovery
from jaxd.connection.control_client import stop_and_wait
from jaxd.connection.local_server import start_background
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.server.host_process import FAKE_HOST


@pytest.fixture
def files(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServerFiles]:
    """The files of the local server, which has a fake worker and is ended with the test."""
    fake = functools.partial(start_background, server_command=(sys.executable, "-P", FAKE_HOST))
    monkeypatch.setattr(lifecycle, "start_background", fake)
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    files = LocalServerFiles.of_this_environment()
    yield files
    stop_and_wait(files.control, now=True)


def test_it_starts_once(files: LocalServerFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time it says so, and that is no failure."""
    assert main(["start"]) == 0
    assert f"started a server at unix://{files.socket}" in capsys.readouterr().out
    assert main(["start"]) == 0
    assert "runs already" in capsys.readouterr().out


def test_json_says_the_same(files: LocalServerFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts."""
    for started in (True, False):
        assert main(["start", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "server": f"unix://{files.socket}",
            "log": files.log,
            "started": started,
        }


@pytest.mark.slow
def test_a_start_that_fails_quotes_the_server(
    files: LocalServerFiles,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On stderr, with exit code 1 and no traceback of ours."""
    monkeypatch.setenv("FAKE_WORKER", "fail")
    assert main(["start"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jaxd: the worker ended 5 times before it was ready")
    assert "libaccelerator.so" in said
