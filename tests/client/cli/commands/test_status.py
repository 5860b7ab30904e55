from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import pytest

import jaxd
from jaxd.cli.__main__ import main
from jaxd.cli.commands import status
from jaxd_protocol.errors import AuthenticationFailed, NoServer
from jaxd_protocol.messages.server_view import ServerView
from jaxd_protocol.network.addresses import Address


def test_without_a_server_json_says_absent(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shape is the same as with one."""
    assert main(["status", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["worker_state"], report["host"], report["worker"]) == ("absent", None, {})


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("ready", 0),
        ("busy", 0),
        ("resting", 0),
        ("starting", 1),
        ("dead", 1),
        ("draining", 1),
        ("stuck", 1),
    ],
)
def test_whoever_waits_for_the_server_is_told_when_it_answers(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    code: int,
) -> None:
    """A worker that computes answers, though late; without `--ready` any state will do."""
    report: dict[str, Any] = {"host": None, "worker": {}, "worker_state": state}
    report["worker_silent_s"] = 1.0
    monkeypatch.setattr(status, "send_request", lambda *_: report)
    assert main(["status", "--ready"]) == code
    assert (f"answers no call: {state}" in capsys.readouterr().err) == bool(code)
    assert main(["status"]) == 0


def test_people_get_a_short_table(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters, what runs, and where the log is."""
    report = {
        "host": {"pid": 7, "uptime_s": 7200.0, "restarts": 0, "quarantined": 2, "log": "/l"},
        "worker": {
            "calls": 12345,
            "traces": 1,
            "executable_hits": 2,
            "bytes_received": 64e6,
            "trace_s": 1.25,
            "compile_s": 600.0,
            "saved_s": 7200.0,
            "disk_bytes": 8192,
            "disk_files": 2000,
            "store": {
                "name": "/shared",
                "is_used": True,
                "read_only": True,
                "loaded": 1200,
                "added": 0,
            },
            "running": [
                {"function": "train_step", "seconds": 300.0, "phase": "running"},
                {"function": "slow", "seconds": 78.0, "phase": "building"},
                {
                    "function": "small",
                    "seconds": 5.0,
                    "phase": "waiting",
                    "behind": "slow",
                    "behind_s": 78.0,
                },
            ],
        },
        "worker_state": "ready",
        "worker_silent_s": 0.0,
    }
    assert "\n".join(status._report_lines(Address.unix("/s"), report)) == (
        "server    unix:///s\n"
        "state     ready\n"
        "host      process 7, up 2 h, 0 restarts of the worker\n"
        "did       12,345 calls, 1 traces, 0 compiles, 2 hits, 0 loads\n"
        "paid      1.2 s tracing, 10 min compiling, 0.00 s loading; saved 2 h\n"
        "holds     0 functions, 0 executables, 0 programs, 0 values, 0 connections\n"
        "disk      8.19 kB in 2,000 files\n"
        "traffic   64 MB received, 0 B sent\n"
        "running   train_step for 5 min\n"
        "building  slow for 78 s\n"
        "waiting   small for 5.0 s: waits to be compiled behind slow (78 s)\n"
        "store     /shared, read only: 1,200 programs taken, 0 added\n"
        "refuses   2 functions in quarantine (jaxd functions --quarantined)\n"
        "log       /l"
    )


def test_a_store_that_is_not_used_is_told_of() -> None:
    """With where it stands why."""
    report = {"host": {}, "worker": {"store": {"name": "/shared", "is_used": False}}}
    lines = status._report_lines(Address.unix("/s"), {**report, "worker_state": "ready"})
    assert "store     /shared is not used; why: jaxd logs --level warning" in lines


def test_of_several_workers_each_has_a_line() -> None:
    """Whose it is, as which user it runs, and what it does."""
    seen = {"calls": 1200, "values": 3, "connections": 1}
    row = {"worker_state": "ready", "worker_pid": 8, "restarts": 0, "user": None, "worker": seen}
    report = {
        "host": {"pid": 7, "uptime_s": 60.0, "restarts": 1},
        "worker": {"running": [{"function": "f", "seconds": 2.0, "principal": "account:bob"}]},
        "worker_state": "ready",
        "workers": [
            {**row, "principal": "account:alice", "user": "61000"},
            {**row, "principal": "account:bob", "worker_state": "resting"},
            {
                **row,
                "principal": "uid:7",
                "worker_state": "stuck",
                "worker": {},
                "worker_silent_s": 34.0,
                "worker_process": "sleeping",
            },
        ],
    }
    first, second, third, running = status._report_lines(Address.unix("/s"), report)[3:]
    told = "process 8 as user 61000, 0 restarts, 1,200 calls, 3 values, 1 connections"
    assert first == f"worker    alice: ready, {told}"
    assert second == "worker    bob: resting until the next call"
    silent = "stuck: no answer from the worker for 34 s; its process is sleeping"
    assert third.startswith(f"worker    uid:7: {silent}, process 8, 0 restarts, 0 calls")
    assert running == "running   f for 2.0 s, of bob"


@pytest.mark.parametrize(
    ("principals", "line"),
    [
        (["uid:1000"], None),
        (["token"], None),
        (["account:alice"], "clients   alice 2"),
        (["account:alice", "uid:1000"], "clients   alice 2, uid:1000 2"),
    ],
)
def test_who_is_here_is_said_where_that_may_be_several(
    principals: list[str], line: str | None
) -> None:
    """Most servers have their own user alone."""
    rows = [{"principal": name, "connections": 2, "sessions": 1} for name in principals]
    lines = status._client_lines({"principals": rows})
    assert lines == ([] if line is None else [line])


class Statistics(NamedTuple):
    calls: int = 3


class FakeClient:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def statistics(self) -> Statistics:
        return Statistics()


def test_a_server_elsewhere_is_asked_on_its_own_address(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its control socket is out of reach."""
    monkeypatch.setattr(jaxd, "connect", lambda address: FakeClient(), raising=False)
    view = ServerView(sequence=3)
    watch = nullcontext(SimpleNamespace(view=view))
    monkeypatch.setattr(jaxd, "watch", lambda address: watch, raising=False)
    assert main(["status", "--json", "--server", "tcp://gpu-host:1"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "server": "tcp://gpu-host:1",
        "worker_state": "ready",
        "host": None,
        "worker": {"calls": 3},
        "view": view.to_dict(),
    }


@pytest.mark.parametrize(
    ("error", "code"), [(NoServer("none. Start it."), 3), (AuthenticationFailed("no. Get it."), 1)]
)
def test_a_server_elsewhere_may_be_absent_or_refuse(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    """Only the first means that no server runs."""

    def connect(_: str) -> FakeClient:
        raise error

    monkeypatch.setattr(jaxd, "connect", connect, raising=False)
    assert main(["status", "--server", "tcp://gpu-host:1"]) == code
