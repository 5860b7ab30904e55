"""`jaxd relay`: joins stdin and stdout with a server of this machine."""

from __future__ import annotations

import argparse

from jaxd.cli.query import add_server_option
from jaxd.connection import ssh_relay
from jaxd.connection.discovery import find_server
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError

SUMMARY = "join stdin and stdout with a server here, for ssh:// addresses"
EXAMPLE = 'command="sudo -u jaxd jaxd relay" ssh-ed25519 …   (in ~/.ssh/authorized_keys)'


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_server_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns when one end has closed: 0; 1 when no server answers.

    The local server is started when it does not run, as by a first call.

    Raises:
        ConfigurationError: when the server has no Unix socket.
        NoServer: when none runs and none can be started.
    """
    address = find_server(Settings.resolve(server=arguments.server))
    if address.kind != "unix":
        raise ConfigurationError(
            f"{address} is no Unix socket. Name one with --server unix:///path, or unset "
            "JAXD_SERVER."
        )
    return ssh_relay.relay_stdio(address.path, "" if address.uid is None else str(address.uid))
