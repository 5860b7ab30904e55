"""`jaxd restart`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd.cli import main
from tests.server.host_process import HostProcess

StartHost = Callable[..., HostProcess]


@pytest.fixture(autouse=True)
def _no_server_of_the_user(runtime: Path) -> None:
    """None that runs on this machine is restarted."""


def test_it_returns_when_the_next_worker_is_ready(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which one that is."""
    start_host().wait_until_ready()
    assert main(["restart"]) == 0
    assert capsys.readouterr().out.startswith("worker 2 is ready after ")
    assert main(["restart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 3


def test_what_is_refused_is_a_failure(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why, and what to do."""
    start_host(FAKE_WORKER="needed").wait_until_ready()
    assert main(["restart"]) == 1
    said = capsys.readouterr().err
    assert "it holds arrays of uid:7. Try again later, or: jaxd restart --force\n" in said
    assert main(["restart", "--force"]) == 0


def test_without_a_server(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is started to be replaced."""
    assert main(["restart"]) == 3
    assert capsys.readouterr().err.endswith("Start one: jaxd start\n")
