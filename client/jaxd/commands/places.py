"""Which server a command is about."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.control import control_path
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.paths import LocalServerFiles

__all__ = ["add_json_option", "add_server_option", "control_of", "named_or_local", "print_json"]


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


def named_or_local(settings: Settings) -> Address:
    """The server that was named, else the local one, whether it runs or not."""
    files = LocalServerFiles.of_this_environment()
    return settings.server or Address.unix(files.socket)


def control_of(address: Address) -> str:
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
