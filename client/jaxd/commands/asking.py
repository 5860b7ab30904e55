"""Asks a server that runs; no command that only asks starts one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd.caller import Caller
from jaxd.client import Client
from jaxd.commands.places import print_json
from jaxd.settings import Settings
from jaxd.why import asked_server
from jaxd_protocol.errors import NoServer

__all__ = ["NO_SERVER", "ask", "print_report", "without_server"]

Report = Mapping[str, Any]

NO_SERVER: Final = 3
"""How a command ends that found no server to ask."""


def ask(server: str | None, verb: str, *args: Any) -> Report:
    """What a server says, with its address under `server`.

    Args:
        server: its address; None: the one that this environment uses.
        verb: what to ask; see `jaxd_protocol.calls`.
        args: plain values.

    Raises:
        NoServer: when none runs.
        JaxdError: when it does not tell us.
    """
    with Client(asked_server(Caller(Settings.resolve(server=server)))) as client:
        report = client.caller.ask(verb, *args)
        return {"server": str(client.caller.address), **report}


def without_server(error: NoServer) -> int:
    """Says on stderr why there is none to ask; the exit status."""
    print(f"jaxd: {error}", file=sys.stderr)
    return NO_SERVER


def print_report(
    arguments: argparse.Namespace,
    verb: str,
    in_words: Callable[[Report], str],
    seen: Callable[[Report], Report] = lambda report: report,
) -> int:
    """Prints what a server says, for people or with `--json`; the exit status.

    Args:
        arguments: with `server` and `json`.
        verb: what to ask; see `jaxd_protocol.calls`.
        in_words: the same for people.
        seen: what of it is shown, and in which order.

    Raises:
        JaxdError: when a server runs but does not tell us.
    """
    try:
        report = seen(ask(arguments.server, verb))
    except NoServer as error:
        return without_server(error)
    if arguments.json:
        print_json(report)
    else:
        print(in_words(report))
    return 0
