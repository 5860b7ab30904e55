"""`jaxd devices`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from tests.client.fake_server import FakeServer

BUSY: dict[str, Any] = {
    "index": 0,
    "platform": "gpu",
    "kind": "NVIDIA H200",
    "bytes_in_use": 5_000_000,
    "bytes_limit": 140_000_000_000,
    "sessions": 2,
    "is_yours": False,
}
OURS = {**BUSY, "index": 1, "bytes_in_use": 0, "sessions": 1, "is_yours": True}


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    server = FakeServer(f"{runtime}/s.sock", devices={"devices": [BUSY, OURS]})
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


@pytest.mark.usefixtures("server")
def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each; the command does not count itself."""
    assert main(["devices"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["index", "kind", "memory in use", "of", "sessions"],
        ["0", "NVIDIA H200", "5 MB", "140 GB", "2"],
        ["1", "NVIDIA H200", "0 B", "140 GB", "0"],
    ]


def test_programs_get_json(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is known, with the server's address."""
    assert main(["devices", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["server"] == server.address
    assert [row["sessions"] for row in report["devices"]] == [2, 0]
    assert [row["bytes_limit"] for row in report["devices"]] == [140_000_000_000] * 2
    assert "is_yours" not in report["devices"][0]


def test_without_a_server_it_says_so(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And starts none."""
    monkeypatch.delenv("JAXD_SERVER", raising=False)
    assert main(["devices"]) == 3
    assert "no server runs" in capsys.readouterr().err
