"""`jaxd values`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from tests.client.fake_server import FakeServer

NAMED: dict[str, Any] = {
    "principal": "uid:1000",
    "what": "named 'weights'",
    "name": "weights",
    "ttl_s": 3000.0,
    "values": 1200,
    "bytes": 5_000_000,
    "age_s": 200.0,
}
LASTING = {**NAMED, "what": "named 'best'", "name": "best", "ttl_s": None}
STEP = {**NAMED, "what": "train_step", "name": None, "ttl_s": None, "values": 2, "bytes": 1_460_000}
OTHERS = {
    **STEP,
    "principal": "uid:7",
    "what": "values of uid:7",
    "values": None,
    "bytes": 8,
    "age_s": None,
}
TOTALS = {"values": 2403, "bytes": 11_460_008, "limit_bytes": 8_000_000_000}


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    values = {"holders": [NAMED, LASTING, STEP, OTHERS], "totals": TOTALS}
    server = FakeServer(f"{runtime}/s.sock", values=values)
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


def cells(line: str) -> list[str]:
    """The columns of a line."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.usefixtures("server")
def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each name and each function, and in the end all of it."""
    assert main(["values"]) == 0
    head, named, lasting, step, others, totals, kept = capsys.readouterr().out.splitlines()
    assert cells(head) == ["what", "arrays", "size", "oldest", "ends in"]
    assert cells(named) == ["named 'weights'", "1,200", "5 MB", "3 min ago", "50 min"]
    assert cells(lasting)[-1] == "never"
    assert cells(step) == ["train_step", "2", "1.46 MB", "3 min ago"]
    assert cells(others) == ["values of uid:7", "8 B"]
    assert totals == "2,403 arrays, 11.5 MB of 8 GB"
    assert "jaxd.kept()" in kept


def test_nothing_is_said_in_words(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """And not as an empty table; one is one, and where there is no limit none is told."""
    totals = {"values": 0, "bytes": 0, "limit_bytes": 100}
    server.answers["values"] = {"holders": [], "totals": totals}
    assert main(["values"]) == 0
    assert capsys.readouterr().out == "no arrays stay on the server\n"
    totals = {"values": 1, "bytes": 8, "limit_bytes": 0}
    server.answers["values"] = {"holders": [OTHERS], "totals": totals}
    assert main(["values"]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "1 array, 8 B"


def test_json_is_what_the_server_says(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address."""
    assert main(["values", "--json", "--server", server.address]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["server"] == server.address
    assert report["holders"] == [NAMED, LASTING, STEP, OTHERS]
    assert report["totals"] == TOTALS
