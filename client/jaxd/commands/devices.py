"""`jaxd devices`: what a server computes on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.commands.asking import ask, without_server
from jaxd.commands.places import add_json_option, add_server_option, print_json
from jaxd.commands.words import cut
from jaxd_protocol.errors import NoServer
from jaxd_protocol.terminal import size, table

__all__ = ["EXAMPLE", "SUMMARY", "configure", "run"]

SUMMARY = "list the devices of the server, their memory, and how many clients are on each"
EXAMPLE = "jaxd devices --json"

_WIDEST: Final = 40

Row = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_server_option(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list: 0 when a server gave it, 3 when none runs. Starts no server.

    Raises:
        JaxdError: when a server runs but does not tell us.
    """
    try:
        report = ask(arguments.server, "devices")
    except NoServer as error:
        return without_server(error)
    rows = _without_us(report["devices"])
    if arguments.json:
        print_json({**report, "devices": rows})
    else:
        print(_text(rows))
    return 0


def _without_us(rows: Sequence[Row]) -> list[Row]:
    """This command is a client as well, and tells of the others."""
    return [
        {name: value for name, value in row.items() if name != "is_yours"}
        | {"sessions": row["sessions"] - row["is_yours"]}
        for row in rows
    ]


def _text(rows: Sequence[Row]) -> str:
    head = ("index", "kind", "memory in use", "of", "sessions")
    return str(table([head, *map(_cells, rows)]))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["index"]),
        cut(row["kind"], _WIDEST),
        size(row["bytes_in_use"]),
        size(row["bytes_limit"]),
        str(row["sessions"]),
    )
