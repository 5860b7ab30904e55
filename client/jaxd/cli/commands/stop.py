"""`jaxd stop`: ends a server of this machine."""

from __future__ import annotations

import argparse
import socket
import sys

from jaxd.cli.query import add_server_option, control_socket_of, server_address
from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import has_listener

_CONNECT_S = 5.0
SUMMARY = "finish the running calls of a server, then end it"
EXAMPLE = "jaxd stop --server unix:///run/jaxd/server.sock"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_server_option(parser)
    parser.add_argument("--now", action="store_true", help="do not wait for running calls")


def run(arguments: argparse.Namespace) -> int:
    """Returns when the server is gone: 0, also when there was none.

    Raises:
        ConfigurationError: when the server is on another machine, or its control socket elsewhere.
        ConnectionLost: when its host does not reply.
    """
    address = server_address(arguments.server)
    control = control_socket_of(address)
    if not arguments.now:
        _print_running_calls(control, address.uid)
    if stop_and_wait(control, now=arguments.now, uid=address.uid):
        print(f"stopped the server at {address}")
    elif _accepts_connections(address):
        raise ConfigurationError(
            f"something listens at {address}, but its control socket is not at {control}: it was "
            "started from another environment, by another user or with --control, or it is no "
            "jaxd server. Run `jaxd stop` in the environment where it was started."
        )
    else:
        print(f"no server runs at {address}")
    return 0


def _accepts_connections(address: Address) -> bool:
    """Whether anything accepts connections there; no handshake, since it may be another program."""
    if address.kind == "unix":
        return has_listener(address.path)
    try:
        socket.create_connection(address.place, _CONNECT_S).close()
    except OSError:
        return False
    return True


def _print_running_calls(control: str, uid: int | None) -> None:
    """On a terminal, prints what the command waits for and how to end it."""
    status = send_request(control, {"ask": "status"}, uid) or {}
    running = (status.get("worker") or {}).get("running_calls")
    if running and sys.stderr.isatty():
        print(f"jaxd: waiting for {running} running calls (else: jaxd stop --now)", file=sys.stderr)
