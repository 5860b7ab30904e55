"""`jaxd restart`: replaces a server's worker without failing any call."""

from __future__ import annotations

import argparse
import sys

from jaxd.cli.query import (
    NO_SERVER,
    add_json_option,
    add_server_option,
    control_socket_of,
    print_json,
    server_address,
)
from jaxd.cli.terminal import duration
from jaxd.connection.control_client import send_request
from jaxd.connection.settings import Settings

SUMMARY = "replace a server's worker by a fresh one; calls wait meanwhile, and none fails"
EXAMPLE = "jaxd restart --server unix:///run/jaxd/server.sock"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="also when clients have arrays on the server, which are lost then",
    )
    add_server_option(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns when the new worker is ready: 0; 1 when it was not replaced, 3 without a server.

    Raises:
        ConfigurationError: when the server is on another machine.
        ConnectionLost: when its host does not reply.
    """
    address = server_address(Settings.resolve(server=arguments.server))
    request = {"ask": "restart", "force": arguments.force}
    report = send_request(control_socket_of(address), request, address.uid, is_slow=True)
    if report is None:
        print(f"jaxd: no server runs at {address}. Start one: jaxd start", file=sys.stderr)
        return NO_SERVER
    if arguments.json:
        print_json({"server": str(address), **report})
    elif "workers" in report:
        for row in report["workers"]:
            if "refused" not in row:
                took = duration(row["seconds"])
                print(f"worker {row['epoch']} of {row['principal']} is ready after {took}")
    elif "refused" not in report:
        print(f"worker {report['epoch']} is ready after {duration(report['seconds'])}")
    if "refused" in report:
        advice = "" if arguments.force else " Try again later, or: jaxd restart --force"
        print(f"jaxd: the worker was not replaced: {report['refused']}.{advice}", file=sys.stderr)
        return 1
    return 0
