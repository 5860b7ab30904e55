"""`jaxd functions`: what a server has built, what that cost, and what it saved."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.cli.query import add_query_options, ask_host, ask_server, print_report
from jaxd_protocol.base.terminal import ago, duration, size, table, truncate

SUMMARY = "list what is compiled, what that cost and what it has saved"
EXAMPLE = "jaxd functions --sort saved"

_MAX_WIDTH: Final = 40
_SHOWN_DIGITS: Final = 8
_FINGERPRINT_DIGITS: Final = 12

Row = Mapping[str, Any]

_SORTS: Final = {
    "calls": lambda row: -row["calls"],
    "saved": lambda row: -row["saved_s"],
    "bytes": lambda row: -_bytes(row),
    "last": lambda row: float("inf") if row["last_use_s"] is None else row["last_use_s"],
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--sort",
        choices=tuple(_SORTS),
        default="last",
        help="most calls, most seconds saved, most bytes, or used last (default) first",
    )
    parser.add_argument(
        "--quarantined",
        action="store_true",
        help="list instead the functions in quarantine, which are refused because they ended the "
        "server's worker repeatedly",
    )
    parser.add_argument(
        "--release",
        metavar="FUNCTION",
        help="take a function out of quarantine, by its name or the first digits of its "
        "fingerprint; --release all for all of them",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; starts no server.

    Returns:
        0; with `--release`, 1 when there is no such function in quarantine.

    Raises:
        NoServer: when none runs.
        JaxdError: when a server runs but does not answer.
    """
    if arguments.quarantined or arguments.release is not None:
        return _run_quarantine(arguments)
    report = ask_server(arguments.server, "functions")
    rows = sorted(report["functions"], key=_SORTS[arguments.sort])
    return print_report(
        arguments, {**report, "functions": rows}, lambda: _table_text(rows, report["totals"])
    )


def _table_text(rows: Sequence[Row], totals: Row) -> str:
    if not rows:
        return "nothing is compiled, in memory or on disk"
    head = ("key", "function", "arguments", "where", "calls", "last use", "built", "saved", "size")
    count = "1 program" if len(rows) == 1 else f"{len(rows)} programs"
    built, saved = duration(totals["build_s"]), duration(totals["saved_s"])
    return (
        f"{table([head, *map(_row_cells, rows)])}\n"
        f"{count}; since the server's worker started, {built} of building and {saved} saved"
    )


def _row_cells(row: Row) -> tuple[str, ...]:
    shared = row["shared_with"]
    return (
        row["key"][:_SHOWN_DIGITS],
        truncate(row["name"], _MAX_WIDTH),
        truncate(row["arguments"], _MAX_WIDTH),
        row["state"],
        f"{row['calls']:,}",
        ago(row["last_use_s"]),
        duration(row["build_s"]),
        duration(row["saved_s"]),
        size(_bytes(row)) + (f", shared by {shared + 1}" if shared else ""),
    )


def _bytes(row: Row) -> int:
    """What it takes where it is: in memory, or on disk."""
    if row["state"] == "disk":
        return int(row["disk_bytes"])
    return int(row["host_bytes"] + row["device_bytes"])


def _run_quarantine(arguments: argparse.Namespace) -> int:
    """Lists the functions in quarantine, or releases some of them."""
    what = arguments.release
    if what is None:
        report = ask_host(arguments.server, {"ask": "quarantined"})
        return print_report(arguments, report, lambda: _quarantine_text(report["quarantined"]))
    report = ask_host(arguments.server, {"ask": "release", "what": what})
    if report["released"] or arguments.json:
        lines = map(_release_text, report["released"])
        print_report(arguments, report, lambda: "\n".join(lines))
    if report["released"]:
        return 0
    print(
        f"jaxd: nothing in quarantine is called {what}. See: jaxd functions --quarantined",
        file=sys.stderr,
    )
    return 1


def _release_text(row: Row) -> str:
    whose = f" of {row['principal']}" if "principal" in row else ""
    return f"released {row['name']} {row['fingerprint'][:_FINGERPRINT_DIGITS]}{whose}"


def _quarantine_text(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return "no function is in quarantine"
    head = ["fingerprint", "function", "workers ended", "how", "last"]
    if "principal" in rows[0]:  # where each has a worker of its own
        head.append("of")
    return table([head, *map(_quarantined_cells, rows)])


def _quarantined_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["fingerprint"][:_FINGERPRINT_DIGITS],
        row["name"],
        str(row["workers_ended"]),
        row["how"],
        ago(row["ago_s"]),
        *([row["principal"]] if "principal" in row else []),
    ]
