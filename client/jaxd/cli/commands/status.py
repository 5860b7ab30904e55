"""`jaxd status` and `jaxd top`: what a server is doing; neither starts one."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from jaxd.cli.query import (
    add_query_options,
    add_server_option,
    no_server_at,
    owner,
    print_json,
    require_packages,
    server_address,
)
from jaxd.connection.control_client import send_request
from jaxd_protocol.base.terminal import counted, duration, print_message, size
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path, has_listener

if TYPE_CHECKING:
    from jaxd.api.watcher import Watch
    from jaxd.cli.server_summary import Seen
    from jaxd.cli.server_tables import Pane
    from jaxd_protocol.messages.server_view import ServerView

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
        print_message(f"the server answers no call: {report['worker_state']}")
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
    if seen.get("has_device") is False:
        lines.append(f"{'device':<9} none: calls run in processes with place='here'")
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
    if seen.get("store"):
        lines.append(f"{'store':<9} {_store_line(seen['store'])}")
    if host.get("quarantined"):
        what = counted(host["quarantined"], "function")
        lines.append(f"{'refuses':<9} {what} in quarantine (jaxd functions --quarantined)")
    if host.get("log"):
        lines.append(f"{'log':<9} {host['log']}")
    return lines


def _store_line(store: Report) -> str:
    """What a server has of the store that it shares, and has added to it."""
    if not store["is_used"]:
        return f"{store['name']} is not used; why: jaxd logs --level warning"
    access = ", read only" if store["read_only"] else ""
    return f"{store['name']}{access}: {store['loaded']:,} programs taken, {store['added']:,} added"


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
    name = owner(row["principal"])
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
    return f", of {owner(call['principal'])}" if "principal" in call else ""


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
    texts = (f"{owner(row['principal'])} {row['connections']}" for row in rows)
    return [f"{'clients':<9} {', '.join(texts)}"]


# `jaxd top` ---------------------------------------------------------------------------------------

_PANES: Final = ("calls", "functions", "builds", "values", "sessions", "events", "processes")
_FRAME_ROWS: Final = 10
_RETRY_S: Final = 0.5


class Top:
    """`jaxd top`: the same and more, live, in the terminal."""

    SUMMARY = "watch calls, functions, builds, values and errors live"
    EXAMPLE = "jaxd top; jaxd top --pane functions; jaxd top --once"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        add_server_option(parser)
        parser.add_argument(
            "--pane", choices=_PANES, help="the table that is shown first; with --once, all of it"
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="print one frame as text, and end; needs no terminal",
        )
        parser.add_argument(
            "--wait", action="store_true", help="where no server runs, wait until one does"
        )

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Shows it until a key ends it; starts no server.

        Returns:
            0; 1 when the program on the screen has failed.

        Raises:
            NoServer: when none runs, without `--wait`.
            ConfigurationError: when there can be no screen: no terminal, or textual is missing.
            JaxdError: when a server runs but does not answer.
        """
        if not arguments.once:
            _require_screen()
        with _watched(arguments.server, waits=arguments.wait) as watch:
            if arguments.once:
                print(_frame(watch.view, arguments.pane))
                return 0
            from jaxd.cli.top_screen import Top as Program

            program = Program(watch, arguments.pane or _PANES[0], is_local=watch.is_local)
            program.run()
            return program.return_code or 0


def _require_screen() -> None:
    """Returns when something can be drawn.

    Raises:
        ConfigurationError: when it cannot.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM") == "dumb":
        raise ConfigurationError(
            "jaxd top needs a terminal that it can draw on. For text, run: jaxd top --once "
            "or jaxd status"
        )
    more = " (jaxd top --once does without)"
    require_packages("jaxd top", "top", "textual", more=more)


def _watched(server: str | None, *, waits: bool) -> Watch:
    """The server; once it runs, where that is waited for.

    Raises:
        NoServer: when none runs, and none is waited for.
        JaxdError: when it does not answer.
    """
    from jaxd.api.watcher import watch

    is_told = False
    while True:
        try:
            return watch(server)
        except NoServer as error:
            if not waits:
                raise
            if not is_told:
                print_message(f"waiting: {error}")
            is_told = True
        time.sleep(_RETRY_S)


def _frame(view: ServerView, name: str | None) -> str:
    """All there is to see as text: the first rows of each table, or one table whole."""
    from jaxd.cli.server_summary import Seen, head
    from jaxd.cli.server_tables import PANES

    width = shutil.get_terminal_size().columns
    seen = Seen(max(time.time(), view.at))
    lines = ["".join(text for text, _ in spans) for spans in head(view, seen, width)]
    for pane in PANES.values() if name is None else [PANES[name]]:
        if name is not None or pane.rows(view):
            lines += ["", *_pane_lines(pane, view, seen, width, None if name else _FRAME_ROWS)]
    return "\n".join(line.rstrip() for line in lines)


def _pane_lines(
    pane: Pane, view: ServerView, seen: Seen, width: int, most: int | None
) -> Iterator[str]:
    from jaxd.cli.server_tables import Listing

    listing = Listing(pane)
    rows, columns = listing.rows(view), listing.columns(width)
    yield f"{pane.title} {len(rows):,}"
    yield listing.heading(columns) if rows else pane.empty
    for key, row in rows[:most]:
        yield listing.line(columns, key, row, seen)
    if most is not None and len(rows) > most:
        yield f"and {len(rows) - most:,} more: --pane {pane.title.lower()}"
