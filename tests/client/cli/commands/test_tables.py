"""`jaxd devices`, `jaxd functions` and `jaxd values`: what they print of a server's answer."""

from __future__ import annotations

import json
import time
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
ARGUMENTS = "x: float32[128,8], steps: 10 (static)"
STEP: dict[str, Any] = {
    "name": "train_step",
    "key": "0123456789abcdef" * 2,
    "state": "memory",
    "calls": 12345,
    "arguments": "x: float32[128,8], steps: 10 (static)",
    "last_use_s": 200.0,
    "shared_with": 0,
    "build_s": 8.2,
    "load_s": 0.0,
    "saved_s": 16.0,
    "host_bytes": 1_000_000,
    "device_bytes": 460_000,
    "disk_bytes": 260_000,
}
EVALUATE = {
    **STEP,
    "name": "evaluate",
    "state": "disk",
    "calls": 0,
    "last_use_s": None,
    "build_s": 0.25,
    "saved_s": 60.5,
    "disk_bytes": 5_000_000,
    "shared_with": 2,
}
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
KEPT = {**NAMED, "what": "train_step", "name": None, "ttl_s": None, "values": 2, "bytes": 1_460_000}
OTHERS = {**KEPT, "what": "values of uid:7", "values": None, "bytes": 8, "age_s": None}
ANSWERS: dict[str, Any] = {
    "devices": {"devices": [BUSY, OURS]},
    "functions": {"functions": [STEP, EVALUATE], "totals": {"build_s": 500.0, "saved_s": 7200.0}},
    "values": {
        "holders": [NAMED, LASTING, KEPT, OTHERS],
        "totals": {"values": 2403, "bytes": 11_460_008, "limit_bytes": 8_000_000_000},
    },
}
LINES = {
    "devices": [
        "index  kind  memory in use  of  sessions",
        "0  NVIDIA H200  5 MB  140 GB  2",
        "1  NVIDIA H200  0 B  140 GB  0",  # the command does not count itself
    ],
    "functions": [
        "key  function  arguments  where  calls  last use  built  saved  size",
        f"01234567  train_step  {ARGUMENTS}  memory  12,345  3 min ago  8.2 s  16 s  1.46 MB",
        f"01234567  evaluate  {ARGUMENTS}  disk  0  never  0.25 s  60 s  5 MB, shared by 3",
        "2 programs; since the server's worker started, 8 min of building and 2 h saved",
    ],
    "values": [
        "what  arrays  size  oldest  ends in",
        "named 'weights'  1,200  5 MB  3 min ago  50 min",
        "named 'best'  1,200  5 MB  3 min ago  never",
        "train_step  2  1.46 MB  3 min ago",
        "values of uid:7  8 B",
        "2,403 arrays, 11.5 MB of 8 GB",
        "Which of its arrays a client can make again if the worker ends: jaxd.kept() there.",
    ],
}
NONE = {"build_s": 0.0, "saved_s": 0.0}
FEW: list[tuple[str, dict[str, Any], str]] = [
    ("functions", {"functions": [], "totals": NONE}, "nothing is compiled, in memory or on disk"),
    ("functions", {"functions": [STEP], "totals": NONE}, "1 program; since "),
    (
        "values",
        {"holders": [], "totals": {"values": 0, "bytes": 0, "limit_bytes": 100}},
        "no arrays stay on the server",
    ),
    (
        "values",
        {"holders": [OTHERS], "totals": {"values": 1, "bytes": 8, "limit_bytes": 0}},
        "1 array, 8 B\n",  # where there is no limit none is told
    ),
]


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    server = FakeServer(f"{runtime}/s.sock", **ANSWERS)
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


def rows(text: str) -> list[str]:
    """Lines, with two spaces between columns."""
    return ["  ".join(filter(None, map(str.strip, line.split("  ")))) for line in text.splitlines()]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("command", LINES)
def test_people_get_a_table(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, and in the end what all of it comes to."""
    assert main([command]) == 0
    assert rows(capsys.readouterr().out) == LINES[command]


@pytest.mark.parametrize(("command", "answer", "said"), FEW)
def test_nothing_is_said_in_words(
    server: FakeServer,
    command: str,
    answer: dict[str, Any],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not as an empty table; one is one."""
    server.answers[command] = answer
    assert main([command]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("command", ANSWERS)
def test_json_is_what_the_server_says(
    server: FakeServer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address; of devices without what is meant for a client that stays."""
    assert main([command, "--json", "--server", server.address]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = {**ANSWERS[command], "server": server.address}
    if command == "devices":
        for row, sessions in zip(report["devices"], (2, 0), strict=True):
            assert row.pop("sessions") == sessions
        known = set(BUSY) - {"is_yours", "sessions"}
        expected["devices"] = [{name: row[name] for name in known} for row in (BUSY, OURS)]
    assert report == expected


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
    assert rows(capsys.readouterr().out)[1].split("  ")[1] == first


def test_what_clients_keep_is_told(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """With its age and cost, and what they could not make again."""
    kept = {
        "process": "42",
        "at": time.time() - 60,
        "limit_bytes": 10**9,
        "call_bytes": 2000,
        "snapshot_bytes": 20_000_000,
        "snapshot_age_s": 120.0,
        "snapshot_seconds": 0.5,
        "stopped": "",
        "calls": 3,
        "call_seconds": 4.5,
        "limit_seconds": 600.0,
        "lost_with_worker": {"they were found by a name": 4000},
    }
    ended = {**kept, "process": "", "snapshot_age_s": None, "stopped": "each takes 20 s"}
    server.answers["values"] = {**ANSWERS["values"], "holders": [KEPT], "kept": [kept, ended]}
    snapshots = "20 MB in snapshots"
    calls = "2 kB of calls, of 1 GB in all; calls that ran for 4.5 s, of 10 min"
    assert main(["values"]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        f"process 42 keeps {snapshots}, the last one 3 min ago, which took 0.50 s; {calls}",
        "  cannot make again 4 kB: they were found by a name",
        f"a process keeps {snapshots}; {calls}",
        "  no more snapshots: each takes 20 s",
        "  cannot make again 4 kB: they were found by a name",
    ]
