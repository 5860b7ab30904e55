"""`jaxd functions --quarantined` and `--release`: what a server calls no more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from jaxd.commands.asking import NO_SERVER
from jaxd.commands.places import control_of, named_or_local, print_json
from jaxd.commands.words import ago
from jaxd.control_client import ask
from jaxd.settings import Settings
from jaxd_protocol.terminal import table

__all__ = ["run"]

_SHOWN_DIGITS: Final = 12


def run(arguments: argparse.Namespace) -> int:
    """Lists these functions, or has some of them called again.

    Returns:
        0; 1 when what is to be released is not there; 3 when no server runs.

    Raises:
        ConfigurationError: when the server is on another machine.
        ConnectionLost: when its host does not reply.
    """
    address = named_or_local(Settings.resolve(server=arguments.server))
    control, what = control_of(address), arguments.release
    request = {"ask": "quarantined"} if what is None else {"ask": "release", "what": what}
    report = ask(control, request, address.uid)
    if report is None:
        print(f"jaxd: no server runs at {address}. Start one: jaxd start", file=sys.stderr)
        return NO_SERVER
    if arguments.json:
        print_json({"server": str(address), **report})
    elif what is None:
        print(_listed(report["quarantined"]))
    else:
        for row in report["released"]:
            whose = f" of {row['principal']}" if "principal" in row else ""
            print(f"released {row['name']} {row['fingerprint'][:_SHOWN_DIGITS]}{whose}")
    if what is not None and not report["released"]:
        print(
            f"jaxd: nothing in quarantine is called {what}. See: jaxd functions --quarantined",
            file=sys.stderr,
        )
        return 1
    return 0


def _listed(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return "no function is in quarantine"
    head = ["fingerprint", "function", "workers ended", "how", "last"]
    if "principal" in rows[0]:  # where each has a worker of its own
        head.append("of")
    return table([head, *map(_cells, rows)])


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["fingerprint"][:_SHOWN_DIGITS],
        row["name"],
        str(row["workers_ended"]),
        row["how"],
        ago(row["ago_s"]),
        *([row["principal"]] if "principal" in row else []),
    ]
