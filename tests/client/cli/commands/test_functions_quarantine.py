"""`jaxd functions --quarantined` and `--release`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli import query
from jaxd.cli.__main__ import main
from tests.server.host_process import HostProcess

StartHost = Callable[..., HostProcess]

ROW: dict[str, Any] = {
    "name": "deadly",
    "fingerprint": "0123456789abcdef" * 2,
    "workers_ended": 2,
    "how": "SIGSEGV",
    "ago_s": 12.0,
}


@pytest.fixture(autouse=True)
def _no_server_of_the_user(runtime: Path) -> None:
    """None that runs on this machine is asked."""


def answer(monkeypatch: pytest.MonkeyPatch, **reply: Any) -> list[Any]:
    """Has a host that says so; returns what it is asked."""
    asked: list[Any] = []

    def ask(path: str, request: Any, uid: int | None, *, is_slow: bool) -> Any:
        asked.append(request)
        return reply

    monkeypatch.setattr(query, "send_request", ask)
    return asked


def test_a_server_with_nothing_in_quarantine(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real one says so, and that there is nothing to be released."""
    start_host().wait_until_ready()
    assert main(["functions", "--quarantined"]) == 0
    assert capsys.readouterr().out == "no function is in quarantine\n"
    assert main(["functions", "--release", "deadly"]) == 1
    assert "See: jaxd functions --quarantined" in capsys.readouterr().err


def test_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What people need to release one, and why it is there; or all of it for programs."""
    answer(monkeypatch, quarantined=[ROW])
    assert main(["functions", "--quarantined"]) == 0
    said = capsys.readouterr().out
    assert [word in said for word in ("0123456789ab ", "deadly", "SIGSEGV", "ago")] == [True] * 4
    assert main(["functions", "--quarantined", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quarantined"] == [ROW]


def test_where_each_has_a_worker_it_is_said_whose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the list, and of what is released."""
    row = {**ROW, "principal": "account:alice"}
    answer(monkeypatch, quarantined=[row], released=[row])
    assert main(["functions", "--quarantined"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  account:alice")
    assert main(["functions", "--release", "deadly"]) == 0
    assert capsys.readouterr().out == "released deadly 0123456789ab of account:alice\n"


def test_a_release(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what was released."""
    asked = answer(monkeypatch, released=[ROW])
    assert main(["functions", "--release", "deadly"]) == 0
    assert capsys.readouterr().out == "released deadly 0123456789ab\n"
    assert asked == [{"ask": "release", "what": "deadly"}]
