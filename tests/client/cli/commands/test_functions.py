"""`jaxd functions`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from tests.client.fake_server import FakeServer

ROW: dict[str, Any] = {
    "name": "train_step",
    "key": "0123456789abcdef" * 2,
    "arguments": "x: float32[128,8], steps: 10 (static)",
    "state": "memory",
    "build_s": 8.2,
    "load_s": 0.0,
    "calls": 12345,
    "last_use_s": 200.0,
    "host_bytes": 1_000_000,
    "device_bytes": 460_000,
    "disk_bytes": 260_000,
    "saved_s": 16.0,
    "shared_with": 0,
}
OTHER = {
    **ROW,
    "name": "evaluate",
    "state": "disk",
    "calls": 0,
    "last_use_s": None,
    "build_s": 0.25,
    "saved_s": 60.5,
    "disk_bytes": 5_000_000,
    "shared_with": 2,
}


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    functions = {"functions": [ROW, OTHER], "totals": {"build_s": 500.0, "saved_s": 7200.0}}
    server = FakeServer(f"{runtime}/s.sock", functions=functions)
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


def cells(line: str) -> list[str]:
    """The columns of a line."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.usefixtures("server")
def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each program, and in the end what all of it cost and saved."""
    assert main(["functions"]) == 0
    head, first, second, totals = capsys.readouterr().out.splitlines()
    assert cells(head) == [
        "key", "function", "arguments", "where", "calls", "last use", "built", "saved", "size"
    ]  # fmt: skip
    assert cells(first) == [
        "01234567", "train_step", "x: float32[128,8], steps: 10 (static)", "memory", "12,345",
        "3 min ago", "8.2 s", "16 s", "1.46 MB",
    ]  # fmt: skip
    assert cells(second)[3:] == [
        "disk", "0", "never", "0.25 s", "60 s", "5 MB, shared by 3"
    ]  # fmt: skip
    since = "since the server's worker started, 8 min of building and 2 h saved"
    assert totals == f"2 programs; {since}"


def test_nothing_is_said_in_words(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """And not as an empty table; one is one."""
    totals = {"build_s": 0.0, "saved_s": 0.0}
    server.answers["functions"] = {"functions": [], "totals": totals}
    assert main(["functions"]) == 0
    assert capsys.readouterr().out == "nothing is compiled, in memory or on disk\n"
    server.answers["functions"] = {"functions": [ROW], "totals": totals}
    assert main(["functions"]) == 0
    assert "\n1 program; since " in capsys.readouterr().out


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("sort", "first"),
    [("calls", "train_step"), ("saved", "evaluate"), ("bytes", "evaluate"), ("last", "train_step")],
)
def test_the_order_can_be_chosen(sort: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the table and in JSON."""
    assert main(["functions", "--sort", sort, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["functions"][0]["name"] == first
    assert main(["functions", "--sort", sort]) == 0
    assert cells(capsys.readouterr().out.splitlines()[1])[1] == first


def test_json_is_what_the_server_says(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address."""
    assert main(["functions", "--json", "--server", server.address]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["server"] == server.address
    assert report["functions"] == [ROW, OTHER]
    assert report["totals"]["saved_s"] == 7200.0
