"""`jaxd devices`: what a server computes on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from jaxd.cli.query import add_query_options, ask_server, print_report
from jaxd.cli.terminal import truncate
from jaxd_protocol.base.terminal import size, table

SUMMARY = "list the devices of the server, their memory, and how many clients are on each"
EXAMPLE = "jaxd devices --json"

_MAX_WIDTH: Final = 40

Row = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; starts no server.

    Raises:
        NoServer: when none runs.
        JaxdError: when a server runs but does not answer.
    """
    report = ask_server(arguments.server, "devices")
    rows = list(map(_without_own_session, report["devices"]))
    head = ("index", "kind", "memory in use", "of", "sessions")
    return print_report(
        arguments, {**report, "devices": rows}, lambda: table([head, *map(_row_cells, rows)])
    )


def _without_own_session(row: Row) -> Row:
    """A device without the session of this command, which is a client as well."""
    others = {name: value for name, value in row.items() if name != "is_yours"}
    return {**others, "sessions": row["sessions"] - row["is_yours"]}


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["index"]),
        truncate(row["kind"], _MAX_WIDTH),
        size(row["bytes_in_use"]),
        size(row["bytes_limit"]),
        str(row["sessions"]),
    )
