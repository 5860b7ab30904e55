"""`jaxd functions`: what a server has built, what that cost, and what it saved."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.commands import quarantine
from jaxd.commands.asking import print_report
from jaxd.commands.places import add_json_option, add_server_option
from jaxd.commands.words import ago, cut, duration
from jaxd_protocol.terminal import size, table

__all__ = ["EXAMPLE", "SUMMARY", "configure", "run"]

SUMMARY = "list what is compiled, what that cost and what it has saved"
EXAMPLE = "jaxd functions --sort saved"

_WIDEST: Final = 40
_SHOWN_DIGITS: Final = 8

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
        help="list instead the functions that are called no more, because they have ended the "
        "server's worker again and again",
    )
    parser.add_argument(
        "--release",
        metavar="FUNCTION",
        help="have such a function called again, by its name or the first digits of its "
        "fingerprint; --release all for all of them",
    )
    add_server_option(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list: 0 when a server gave it, 3 when none runs. Starts no server.

    Returns:
        With `--release`, 1 when there is no such function in quarantine.

    Raises:
        JaxdError: when a server runs but does not tell us.
    """
    if arguments.quarantined or arguments.release is not None:
        return quarantine.run(arguments)

    def in_order(report: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**report, "functions": sorted(report["functions"], key=_SORTS[arguments.sort])}

    return print_report(
        arguments, "functions", lambda said: _text(said["functions"], said["totals"]), in_order
    )


def _text(rows: Sequence[Row], totals: Row) -> str:
    if not rows:
        return "nothing is compiled, in memory or on disk"
    head = ("key", "function", "arguments", "where", "calls", "last use", "built", "saved", "size")
    count = "1 program" if len(rows) == 1 else f"{len(rows)} programs"
    built, saved = duration(totals["build_s"]), duration(totals["saved_s"])
    return (
        f"{table([head, *map(_cells, rows)])}\n"
        f"{count}; since the server's worker started, {built} of building and {saved} saved"
    )


def _cells(row: Row) -> tuple[str, ...]:
    shared = row["shared_with"]
    return (
        row["key"][:_SHOWN_DIGITS],
        cut(row["name"], _WIDEST),
        cut(row["arguments"], _WIDEST),
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
