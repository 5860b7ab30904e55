"""What a worker says of itself, and that its options reach its parts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.worker.report import WorkerReport
from jaxd_server.runtime.counters import Counters
from tests.server.in_process import InProcessServer
from tests.server.staging import until

STATUS = {
    *("calls", "traces", "compiles", "executable_hits", "executable_loads", "executables"),
    *("functions", "values", "bytes_received", "bytes_sent", "uptime_s", "epoch", "connections"),
    *("running_calls", "running", "idle_s", "phase", "lowers", "programs", "programs_shared"),
    *("trace_s", "compile_s", "load_s", "saved_s", "disk_bytes", "disk_files"),
}


def test_a_worker_has_every_figure_before_it_has_any_part() -> None:
    """The host may ask at any time."""
    report = WorkerReport(ServerOptions(), Counters())
    report.epoch = 3
    status = report.to_host()
    assert set(status) >= STATUS
    assert (status["phase"], status["epoch"], status["connections"]) == ("starting", 3, 0)
    json.dumps(status)


def test_a_worker_is_told_of_by_who_asks(in_process_server: InProcessServer) -> None:
    """Its host hears what no client does; whoever connects hears nothing of what it does."""
    report = WorkerReport(in_process_server.options, in_process_server.counters)
    report.epoch, report.components = 3, in_process_server.parts
    report.listening.append(in_process_server.unix)
    in_process_server.client().persistent_call(lambda x: x * 2)(1.0)
    told = report.to_host()
    assert (told["phase"], told["calls"], told["platform"], told["owners"]) == (
        *("ready", 1, in_process_server.parts.devices.platform),
        [],
    )
    mine = report.answer("statistics", f"uid:{os.getuid()}")
    assert set(mine) == set(told) - {"platform", "owners", "is_short", "heaviest"}
    assert report.answer("statistics", "account:alice")["calls"] == 0
    info = report.answer("info", "account:alice")
    assert (info["epoch"], info["listen"]) == (3, [in_process_server.unix])
    assert info["devices"] == in_process_server.parts.devices.names()
    welcome = report.welcome()
    assert (welcome["epoch"], welcome["pid"]) == (3, os.getpid())
    assert "calls" not in welcome
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    assert in_process_server.parts.versions == versions
    json.dumps([told, mine, info, welcome])


def test_a_worker_that_cannot_be_shown_goes_on_working() -> None:
    """Its host gets nothing new; an error there would end the worker."""
    report = WorkerReport(ServerOptions(), Counters())
    report.components = cast("Any", SimpleNamespace(view=None))
    assert report.view(3, "s") == {"change": {}, "source": "s", "more": False}


def test_a_server_is_not_idle_at_once_when_a_client_leaves(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that client had not called."""
    monkeypatch.setattr(type(in_process_server.counters), "idle_s", 5_000.0)
    monkeypatch.setattr(type(in_process_server.parts._sessions), "quiet_s", 7_000.0)
    assert in_process_server.parts.status.now()["idle_s"] == 5_000.0
    monkeypatch.undo()
    monkeypatch.setattr(type(in_process_server.counters), "idle_s", 5_000.0)
    client = in_process_server.client()
    client.statistics()
    client.close()
    until(lambda: not in_process_server.parts.status.now()["connections"])
    assert in_process_server.parts.status.now()["idle_s"] < 1_000


def test_a_principal_is_shown_nothing_of_others(in_process_server: InProcessServer) -> None:
    """What the server's own user has done is neither counted nor listed for somebody else."""
    in_process_server.client().persistent_call(lambda x: x * 2)(1.0)
    everything = {
        **in_process_server.counters.snapshot(),
        **in_process_server.parts.status.now(),
        "epoch": 1,
        "phase": "ready",
    }
    (row,) = everything["principals"]
    assert in_process_server.parts.status.shown(everything, row["principal"]) == everything
    shown = in_process_server.parts.status.shown(everything, "account:alice")
    for name in ("calls", "compiles", "executables", "programs", "functions", "connections"):
        assert (bool(everything[name]), shown[name]) == (True, 0)
    assert shown["principals"] == shown["running"] == []
    assert shown["bytes_received"] == shown["value_bytes"] == 0
    assert shown["epoch"] == 1


def test_a_principal_is_shown_what_is_its_own(in_process_server: InProcessServer) -> None:
    """Its connections are counted, and not those of others."""
    alices = {"principal": "account:alice", "connections": 2, "sessions": 1}
    others = {"principal": "account:bob", "connections": 3, "sessions": 3}
    everything = {**in_process_server.parts.status.now(), "epoch": 1, "phase": "ready"}
    everything["principals"] = [alices, others]
    shown = in_process_server.parts.status.shown(everything, "account:alice")
    assert shown["principals"] == [alices]
    assert (shown["connections"], shown["sessions"]) == (2, 1)


def test_a_token_file_that_cannot_be_read_ends_the_start(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """Rather than accepting everybody."""
    with pytest.raises(ConfigurationError, match="jaxd token"):
        open_in_process_server(token_file=str(runtime / "missing"))


def test_options_reach_the_parts(open_in_process_server: Callable[..., InProcessServer]) -> None:
    """The limits that the server was given are those that it keeps."""
    in_process_server = open_in_process_server(
        slots=3, budget_bytes=1 << 20, max_result_bytes=1 << 10, threads=2
    )
    worker_context = in_process_server.parts._worker_context
    assert (worker_context.options.slots, worker_context.budget.limit) == (3, 1 << 20)
    assert worker_context.options.max_result_bytes == 1 << 10
