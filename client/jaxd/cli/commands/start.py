"""`jaxd start`: the local server, in the background, until it is stopped."""

from __future__ import annotations

import argparse

from jaxd.cli.query import add_json_option, print_json
from jaxd.connection.discovery import require_server_extra
from jaxd.connection.local_server import start_background
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, is_server_running

SUMMARY = "start the local server in the background, until `jaxd stop`"
EXAMPLE = "jaxd start && jaxd status"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Starts it, or prints that it runs already; 0 either way.

    Raises:
        ConfigurationError: when jax is not installed here.
        ServerStartFailed: when it ended again.
    """
    files = LocalServerFiles.of_this_environment()
    was_running = is_server_running(files.socket)
    if not was_running:
        require_server_extra()
        start_background(files, by_hand=True)
    address = str(Address.unix(files.socket))
    if arguments.json:
        print_json({"server": address, "log": files.log, "started": not was_running})
    elif was_running:
        print(f"a server runs already at {address}")
    else:
        print(f"started a server at {address}\nlog: {files.log}")
    return 0
