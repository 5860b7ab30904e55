"""Asks a server that runs; no command that only asks starts one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from jaxd.caller import Caller
from jaxd.client import Client
from jaxd.settings import Settings
from jaxd.why import asked_server
from jaxd_protocol.errors import NoServer

__all__ = ["NO_SERVER", "ask", "without_server"]

NO_SERVER: Final = 3
"""How a command ends that found no server to ask."""


def ask(server: str | None, verb: str, *args: Any) -> Mapping[str, Any]:
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
