"""What query commands share: the server's address, its report, and output. None starts a server."""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jaxd.connection.control_client import send_request
from jaxd.connection.discovery import has_server_extra
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, control_path

if TYPE_CHECKING:
    from jaxd.api.client import Client

_NO_SERVER_HERE: Final = (
    "This environment has no jax, so it cannot run one. Either run: pip install 'jaxd[server]', or "
    "set JAXD_SERVER to the address of a server, such as ssh://gpu-host"
)

OUTCOME_WORDS: Final = {"hit": "ready", "load": "loaded", "compile": "compiled"}
"""What has become of a build, by the verdict of the server."""

ServerReport = Mapping[str, Any]


def add_command(commands: Any, name: str, summary: str, example: str) -> Any:
    """Adds the parser of a command to those of others."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example: {example}",
        allow_abbrev=False,
    )


def add_query_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--server ADDRESS` and `--json`."""
    add_server_option(parser)
    add_json_option(parser)


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


def positive_int(text: str) -> int:
    """The value of an option that is a count.

    Raises:
        ArgumentTypeError: when it is none.
    """
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero")
    return int(text)


def require_packages(what: str, extra: str, *names: str, more: str = "") -> None:
    """Returns when packages are installed; imports none.

    Args:
        what: what needs them.
        extra: the extra of jaxd that has them.
        *names: of the packages.
        more: what else to do, for the error.

    Raises:
        ConfigurationError: when one is not.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{what} needs {' and '.join(missing)}, not installed here. Run: "
            f"pip install 'jaxd[{extra}]'{more}"
        )


@contextmanager
def writing(
    path: str, advice: str = "Name a file in a folder where you may write."
) -> Iterator[None]:
    """Within it a file is written.

    Raises:
        ConfigurationError: when it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}. {advice}") from error


def server_address(server: str | None) -> Address:
    """The server that was named, else the local one, whether it runs or not."""
    named = one_server(Settings.resolve(server=server)).server
    return named or Address.unix(LocalServerFiles.of_this_environment().socket)


def one_server(settings: Settings) -> Settings:
    """The settings, where they name a server and not a pool.

    Raises:
        ConfigurationError: when they name a pool.
    """
    if settings.server is not None and settings.server.is_pool:
        raise ConfigurationError(
            f"{settings.server} is a pool, and this command is about one server. Use the address "
            "of a member (jaxd pool status --json has them), or jaxd pool."
        )
    return settings


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


def client_of(server: str | None, *, starts: bool = False) -> Client:
    """A client of a server, which is no pool; not connected yet.

    Args:
        server: its address; None: the one that this environment uses.
        starts: whether the local server is started where it does not run, as by a call.

    Raises:
        NoServer: when none runs, and none is to be started.
        ConfigurationError: when it is a pool.
    """
    from jaxd.api.client import Client  # many commands make no calls
    from jaxd.api.why import running_server
    from jaxd.dispatch.caller import Caller

    caller = Caller(one_server(Settings.resolve(server=server)))
    return Client(caller if starts else running_server(caller))


def ask_server(server: str | None, verb: str, *args: Any) -> ServerReport:
    """The report of a server, with its address under `server`.

    Args:
        server: its address; None: the one that this environment uses.
        verb: what to ask; see `jaxd_protocol.messages.calls`.
        args: plain values.

    Raises:
        NoServer: when none runs.
        ConfigurationError: when it is a pool.
        JaxdError: when it does not answer.
    """
    with client_of(server) as client:
        report = client.caller.session.ask(verb, *args)
        return {"server": str(client.caller.session.address), **report}


def ask_host(
    server: str | None, request: Mapping[str, Any], *, is_slow: bool = False
) -> ServerReport:
    """The reply of the host of a server on this machine, with its address under `server`.

    Args:
        server: its address; None: the one that this environment uses.
        request: for its control socket.
        is_slow: whether the reply may take the host long.

    Raises:
        NoServer: when none runs.
        ConfigurationError: when the server is on another machine.
        ConnectionLost: when its host does not reply.
    """
    address = server_address(server)
    reply = send_request(control_socket_of(address), request, address.uid, is_slow=is_slow)
    if reply is None:
        raise no_server_at(address)
    return {"server": str(address), **reply}


def no_server_at(address: Address) -> NoServer:
    """The error of a query at whose address no server runs."""
    advice = address.advice
    if not hasattr(socket, "AF_UNIX"):
        return NoServer(
            "this command asks the host of a server by a Unix socket, which this system does not "
            f"have. Run it on the machine of the server at {address}."
        )
    if address == Address.unix(LocalServerFiles.of_this_environment().socket):
        advice = "Start one: jaxd start" if has_server_extra() else _NO_SERVER_HERE
    return NoServer(f"no server runs at {address}. {advice}")


def owner(principal: str) -> str:
    """A principal as people call it."""
    return principal.removeprefix("account:")


def print_report(
    arguments: argparse.Namespace, report: ServerReport, text: Callable[[], str]
) -> int:
    """Prints a report, as text or with `--json`; the exit code."""
    if arguments.json:
        print_json(report)
    else:
        print(text())
    return 0
