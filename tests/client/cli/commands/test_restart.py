"""`jaxd restart`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd.cli import query
from jaxd.cli.__main__ import main
from tests.server.host_process import HostProcess

StartHost = Callable[..., HostProcess]


@pytest.fixture(autouse=True)
def _no_server_of_the_user(runtime: Path) -> None:
    """None that runs on this machine is restarted."""


@pytest.mark.slow
def test_it_returns_when_the_next_worker_is_ready(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which one that is."""
    start_host().wait_until_ready()
    assert main(["restart"]) == 0
    assert capsys.readouterr().out.startswith("worker 2 is ready after ")
    assert main(["restart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 3


def test_of_several_workers_it_says_which_are_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that it failed where one was not replaced."""
    new = {"principal": "account:alice", "epoch": 2, "seconds": 3.0}
    old = {"principal": "account:bob", "refused": "it holds arrays"}
    reply = {"workers": [new, old], "refused": "account:bob: it holds arrays"}
    monkeypatch.setattr(query, "send_request", lambda path, request, uid, is_slow: reply)
    assert main(["restart"]) == 1
    said = capsys.readouterr()
    assert said.out == "worker 2 of account:alice is ready after 3.0 s\n"
    assert "account:bob: it holds arrays." in said.err


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
