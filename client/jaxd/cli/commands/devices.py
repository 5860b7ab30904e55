"""`jaxd devices`: what a server computes on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.cli.query import add_json_option, add_server_option, print_report
from jaxd.cli.terminal import truncate
from jaxd_protocol.base.terminal import size, table

SUMMARY = "list the devices of the server, their memory, and how many clients are on each"
EXAMPLE = "jaxd devices --json"

_MAX_WIDTH: Final = 40

Row = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_server_option(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list: 0 when a server gave it, 3 when none runs. Starts no server.

    Raises:
        JaxdError: when a server runs but does not answer.
    """
    return print_report(
        arguments, "devices", lambda report: _table_text(report["devices"]), _without_own_session
    )


def _without_own_session(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """This command is a client as well, and tells of the others."""
    rows = [
        {name: value for name, value in row.items() if name != "is_yours"}
        | {"sessions": row["sessions"] - row["is_yours"]}
        for row in report["devices"]
    ]
    return {**report, "devices": rows}


def _table_text(rows: Sequence[Row]) -> str:
    head = ("index", "kind", "memory in use", "of", "sessions")
    return str(table([head, *map(_row_cells, rows)]))


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["index"]),
        truncate(row["kind"], _MAX_WIDTH),
        size(row["bytes_in_use"]),
        size(row["bytes_limit"]),
        str(row["sessions"]),
    )
