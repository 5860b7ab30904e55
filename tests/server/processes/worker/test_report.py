from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.worker.report import WorkerReport
from jaxd_server.runtime.counters import Counters

if TYPE_CHECKING:
    from tests.server.in_process import InProcessServer

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
    json.dumps([told, mine, info, welcome])


def test_a_worker_that_cannot_be_shown_goes_on_working() -> None:
    """Its host gets nothing new; an error there would end the worker."""
    report = WorkerReport(ServerOptions(), Counters())
    report.components = cast("Any", SimpleNamespace(view=None))
    assert report.view(3, "s") == {"change": {}, "source": "s", "more": False}
