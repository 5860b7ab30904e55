"""What query commands share: the server's address, its report, and output. None starts a server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd.api.client import Client
from jaxd.api.why import running_server
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, control_path

ServerReport = Mapping[str, Any]

NO_SERVER: Final = 3
"""The exit code of a command that found no server."""


def add_server_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--server ADDRESS`."""
    parser.add_argument(
        "--server",
        metavar="ADDRESS",
        help="unix:///path, tcp://host:port, tls://host:port or ssh://user@host (default: "
        "JAXD_SERVER, the config file, or the local server of this environment)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_json(value: Mapping[str, Any]) -> None:
    """Prints `value` as one indented JSON object."""
    print(json.dumps(value, indent=2, default=str))


def server_address(settings: Settings) -> Address:
    """The server that was named, else the local one, whether it runs or not."""
    files = LocalServerFiles.of_this_environment()
    return settings.server or Address.unix(files.socket)


def control_socket_of(address: Address) -> str:
    """The control socket of a server on this machine.

    Raises:
        ConfigurationError: when the server is on another machine.
    """
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address} is on another machine, and a server is controlled from its own. "
            f"Run the same command on {address.host}."
        )
    return control_path(address)


def ask_server(server: str | None, verb: str, *args: Any) -> ServerReport:
    """The report of a server, with its address under `server`.

    Args:
        server: its address; None: the one that this environment uses.
        verb: what to ask; see `jaxd_protocol.messages.calls`.
        args: plain values.

    Raises:
        NoServer: when none runs.
        JaxdError: when it does not answer.
    """
    with Client(running_server(Caller(Settings.resolve(server=server)))) as client:
        report = client.caller.session.ask(verb, *args)
        return {"server": str(client.caller.session.address), **report}


def report_no_server(error: NoServer) -> int:
    """Prints on stderr why no server can be asked; the exit status."""
    print(f"jaxd: {error}", file=sys.stderr)
    return NO_SERVER


def print_report(
    arguments: argparse.Namespace,
    verb: str,
    in_words: Callable[[ServerReport], str],
    seen: Callable[[ServerReport], ServerReport] = lambda report: report,
) -> int:
    """Prints the report of a server, as text or with `--json`; the exit status.

    Args:
        arguments: with `server` and `json`.
        verb: what to ask; see `jaxd_protocol.messages.calls`.
        in_words: makes text of the report.
        seen: what of it is shown, and in which order.

    Raises:
        JaxdError: when a server runs but does not answer.
    """
    try:
        report = seen(ask_server(arguments.server, verb))
    except NoServer as error:
        return report_no_server(error)
    if arguments.json:
        print_json(report)
    else:
        print(in_words(report))
    return 0
