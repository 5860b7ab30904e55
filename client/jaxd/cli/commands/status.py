"""`jaxd status`: what a server is doing; never starts one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from jaxd.cli.query import add_query_options, no_server_at, print_json, server_address
from jaxd.connection.control_client import send_request
from jaxd_protocol.base.terminal import duration, size
from jaxd_protocol.errors import NoServer
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path, has_listener

SUMMARY = "show what a server is doing and has done"
EXAMPLE = "jaxd status --json"

Report = Mapping[str, Any]

_LIVE_STATES = ("ready", "busy", "resting")
"""States of a worker in which calls are answered, if not at once."""

_ABSENT: Report = {"worker_state": "absent", "host": None, "worker": {}}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_query_options(parser)
    parser.add_argument(
        "--ready",
        action="store_true",
        help="fail when no call would be answered now: while a worker starts, or the server stops",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the report: 0, or with `--ready` 1 when the server would answer no call.

    Raises:
        NoServer: when none runs; `--json` has printed that as well.
        JaxdError: when one runs but does not answer, such as for a wrong token.
    """
    address = server_address(arguments.server)
    absence: NoServer | None = None
    try:
        report = _query_host(address, view=arguments.json) or _query_worker(address)
    except NoServer as error:
        report, absence = None, error
    if arguments.json:
        print_json({"server": str(address), **(report or _ABSENT), **_view(report, address)})
    elif report is not None:
        print("\n".join(_report_lines(address, report)))
    if report is None:
        raise absence or no_server_at(address)
    if arguments.ready and report["worker_state"] not in _LIVE_STATES:
        print(f"jaxd: the server answers no call: {report['worker_state']}", file=sys.stderr)
        return 1
    return 0


def _query_host(address: Address, *, view: bool = False) -> Report | None:
    """The report of the host, which answers also when its worker hangs; None: not reachable."""
    if not address.is_loopback:
        return None
    return send_request(control_path(address), {"ask": "status", "view": view}, address.uid)


def _view(report: Report | None, address: Address) -> dict[str, Any]:
    """What there is to see of a server, as `jaxd.watch` shows it."""
    if report is None:
        return {}
    from jaxd_protocol.messages.server_view import ServerView

    if "view" in report:
        return {"view": ServerView.from_dict(report["view"]).to_dict()}
    import jaxd

    with jaxd.watch(str(address)) as seen:
        return {"view": seen.view.to_dict()}


def _query_worker(address: Address) -> Report | None:
    """The report of a server on its own address, as from another machine or container.

    Raises:
        NoServer: when none answers there; says why.
    """
    if address.kind == "unix" and not has_listener(address.path):
        return None
    import jaxd

    with jaxd.connect(str(address)) as client:
        return {"worker_state": "ready", "host": None, "worker": client.statistics()._asdict()}


def _report_lines(address: Address, report: Report) -> list[str]:
    host, seen = report["host"] or {}, report["worker"]
    lines = [f"{'server':<9} {address}", f"{'state':<9} {_state_line(report)}"]
    if host:
        lines.append(
            f"{'host':<9} process {host['pid']}, up {duration(host['uptime_s'])}, "
            f"{host['restarts']} restarts of the worker"
        )
    if host.get("worker_pid"):
        lines.append(f"{'worker':<9} process {host['worker_pid']}; what follows is since its start")
    lines += _loss_lines(host)
    lines += [f"{'worker':<9} {_tenant_lines(row)}" for row in report.get("workers", ())]
    if "calls" in seen:
        lines += _counter_lines(seen)
    lines += _client_lines(seen)
    lines += [_call_line(call) for call in seen.get("running", ())]
    lines += [
        f"{'left':<9} {call['function']} for {duration(call['seconds'])}, {call['phase']}: no "
        "client waits for it"
        for call in seen.get("left_behind", ())
    ]
    if host.get("quarantined"):
        count = host["quarantined"]
        what = "1 function" if count == 1 else f"{count} functions"
        lines.append(f"{'refuses':<9} {what} in quarantine (jaxd functions --quarantined)")
    if host.get("log"):
        lines.append(f"{'log':<9} {host['log']}")
    return lines


def _loss_lines(host: Report) -> list[str]:
    """The sockets of the server that no client finds any more."""
    losses = [f"{'lost':<9} {loss}" for loss in host.get("lost", ())]
    if losses and len(losses) == len(host["listen"]):
        losses.append(f"{'':<9} no client finds the server: it ends when nobody is connected")
    return losses


def _state_line(report: Report) -> str:
    state: str = report["worker_state"]
    if state in ("busy", "stuck"):
        process = report.get("worker_process") or "unknown"
        silent = duration(report["worker_silent_s"])
        return f"{state}: no answer from the worker for {silent}; its process is {process}"
    if state == "broken":
        return f"broken: {report.get('why', '')}"
    if state == "resting":
        return "resting: the device is given back until the next call"
    return state


def _tenant_lines(row: Report) -> str:
    """A worker of a server that has one for each principal."""
    name = row["principal"].removeprefix("account:")
    if row["worker_state"] == "resting":
        return f"{name}: resting until the next call"
    user = f" as user {row['user']}" if row["user"] else ""
    seen = row["worker"]
    facts = [f"process {row['worker_pid']}{user}", f"{row['restarts']} restarts"]
    facts += [f"{seen.get(what, 0):,} {what}" for what in ("calls", "values", "connections")]
    return f"{name}: {_state_line(row)}, {', '.join(facts)}"


def _call_line(call: Report) -> str:
    """What becomes of a call, and what it waits for."""
    word = {"waiting": "waiting", "building": "building"}.get(call.get("phase", ""), "running")
    text = f"{word:<9} {call['function']} for {duration(call['seconds'])}{_owner_text(call)}"
    if "behind" not in call:
        return text
    return f"{text}: waits to be compiled behind {call['behind']} ({duration(call['behind_s'])})"


def _owner_text(call: Report) -> str:
    """Whose call it is, where the report covers several workers."""
    return f", of {call['principal'].removeprefix('account:')}" if "principal" in call else ""


def _counter_lines(seen: Report) -> list[str]:
    def count(name: str) -> str:
        return f"{seen.get(name, 0):,} {name.removeprefix('executable_').replace('_', ' ')}"

    did = ("calls", "traces", "compiles", "executable_hits", "executable_loads")
    holds = ("functions", "executables", "programs", "values", "connections")
    times = ("trace_s", "compile_s", "load_s", "saved_s")
    trace, build, load, saved = (duration(seen.get(name, 0.0)) for name in times)
    received, sent = size(seen.get("bytes_received", 0)), size(seen.get("bytes_sent", 0))
    calls, functions = seen.get("fallback_calls", 0), seen.get("fallback_functions", 0)
    fell_back = f"{calls:,} calls of {functions:,} functions ran in their clients' processes"
    kinds = ("verified", "stale", "incomparable")
    verified, stale, others = (seen.get(f"{kind}_programs", 0) for kind in kinds)
    compared = f"{verified:,} programs, {stale:,} mismatches, {others:,} not comparable"
    return [
        f"{'did':<9} " + ", ".join(count(name) for name in did),
        *([f"{'fell back':<9} {fell_back}"] if calls else []),
        *([f"{'verified':<9} {compared}"] if verified or stale or others else []),
        f"{'paid':<9} {trace} tracing, {build} compiling, {load} loading; saved {saved}",
        f"{'holds':<9} " + ", ".join(count(name) for name in holds),
        f"{'disk':<9} {size(seen.get('disk_bytes', 0))} in {seen.get('disk_files', 0):,} files",
        f"{'traffic':<9} {received} received, {sent} sent",
    ]


def _client_lines(seen: Report) -> list[str]:
    """The connected clients, where there are several principals."""
    rows = seen.get("principals", ())
    if len(rows) < 2 and not any(row["principal"].startswith("account:") for row in rows):
        return []
    texts = (f"{row['principal'].removeprefix('account:')} {row['connections']}" for row in rows)
    return [f"{'clients':<9} {', '.join(texts)}"]
