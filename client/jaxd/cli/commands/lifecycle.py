"""`jaxd start`, `jaxd stop`, `jaxd restart`, `jaxd relay`: a server of this machine."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import Final

from jaxd.cli.query import (
    ServerReport,
    add_json_option,
    add_query_options,
    add_server_option,
    ask_host,
    control_socket_of,
    print_json,
    print_report,
    server_address,
)
from jaxd.connection import ssh_relay
from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd.connection.discovery import find_server, require_server_extra
from jaxd.connection.local_server import start_background
from jaxd.connection.settings import Settings
from jaxd_protocol.base.terminal import duration, print_message
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, has_listener, is_server_running

_CONNECT_S: Final = 5.0


class Start:
    """`jaxd start`: the local server, in the background, until it is stopped."""

    SUMMARY = "start the local server in the background, until `jaxd stop`"
    EXAMPLE = "jaxd start && jaxd status"

    configure = staticmethod(add_json_option)

    @staticmethod
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
        _print_other_server(address)
        if arguments.json:
            print_json({"server": address, "log": files.log, "started": not was_running})
        elif was_running:
            print(f"a server runs already at {address}")
        else:
            print(f"started a server at {address}\nlog: {files.log}")
        return 0


def _print_other_server(address: str) -> None:
    """Where the calls of this environment go to another server than the local one."""
    named = str(Settings.resolve().server or address)
    if named != address:
        print_message(
            f"calls still go to {named}, as JAXD_SERVER or the config file says. To have them go "
            f"here: export JAXD_SERVER={address}"
        )


class Stop:
    """`jaxd stop`: ends a server of this machine."""

    SUMMARY = "finish the running calls of a server, then end it"
    EXAMPLE = "jaxd stop --server unix:///run/jaxd/server.sock"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        add_server_option(parser)
        parser.add_argument("--now", action="store_true", help="do not wait for running calls")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Returns when the server is gone: 0, also when there was none.

        Raises:
            ConfigurationError: when the server is on another machine, or its control socket is
                elsewhere.
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
                f"something listens at {address}, but its control socket is not at {control}: it "
                "was started from another environment, by another user or with --control, or it "
                "is no jaxd server. Run `jaxd stop` in the environment where it was started."
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
        print_message(f"waiting for {running} running calls (else: jaxd stop --now)")


class Restart:
    """`jaxd restart`: replaces a server's worker without failing any call."""

    SUMMARY = "replace a server's worker; calls wait meanwhile, and none fails"
    EXAMPLE = "jaxd restart --server unix:///run/jaxd/server.sock"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        parser.add_argument(
            "--force",
            action="store_true",
            help="also when clients have arrays on the server, which are lost then",
        )
        add_query_options(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Returns when the new worker is ready: 0; 1 when it was not replaced.

        Raises:
            NoServer: when none runs.
            ConfigurationError: when the server is on another machine.
            ConnectionLost: when its host does not reply.
        """
        request = {"ask": "restart", "force": arguments.force}
        report = ask_host(arguments.server, request, is_slow=True)
        ready = [row for row in report.get("workers", [report]) if "refused" not in row]
        if ready or arguments.json:
            print_report(arguments, report, lambda: "\n".join(map(_ready_text, ready)))
        if "refused" in report:
            advice = "" if arguments.force else " Try again later, or: jaxd restart --force"
            print_message(f"the worker was not replaced: {report['refused']}.{advice}")
            return 1
        return 0


def _ready_text(row: ServerReport) -> str:
    whose = f" of {row['principal']}" if "principal" in row else ""
    return f"worker {row['epoch']}{whose} is ready after {duration(row['seconds'])}"


class Relay:
    """`jaxd relay`: joins stdin and stdout with a server of this machine."""

    SUMMARY = "join stdin and stdout with a server here, for ssh:// addresses"
    EXAMPLE = 'command="sudo -u jaxd jaxd relay" ssh-ed25519 …   (in ~/.ssh/authorized_keys)'

    configure = staticmethod(add_server_option)

    @staticmethod
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
