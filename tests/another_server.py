"""A server that runs already, as `pytest --on-server` names it, in place of the tests' own."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

import jaxd
from jaxd_protocol.network.tokens import read_token_file
from tests.live_server import run_client, source_environment

_OPTION = "--on-server"
_REASON = f"needs a server of its own, and {_OPTION} names one"
_named: dict[str, str] = {}
_secrets: dict[str, str] = {}


def add_option(parser: pytest.Parser) -> None:
    """Lets pytest be told of a server."""
    parser.addoption(
        _OPTION,
        metavar="ADDRESS",
        help="run the tests of clients against this server (tls://host:18861#sha256=…), with the "
        "token of JAXD_TOKEN or JAXD_TOKEN_FILE; those that need one of their own are skipped",
    )


def note(config: pytest.Config) -> None:
    """Remembers what pytest was told, before tests change the environment."""
    address = config.getoption(_OPTION)
    if address is None:
        return
    _named["address"] = address
    token = os.environ.get("JAXD_TOKEN", "")
    if not token and os.environ.get("JAXD_TOKEN_FILE"):
        token = read_token_file(os.path.expanduser(os.environ["JAXD_TOKEN_FILE"]))
    if token:
        _secrets["JAXD_TOKEN"] = token
    if "JAXD_CA_FILE" in os.environ:
        _secrets["JAXD_CA_FILE"] = os.path.abspath(os.environ["JAXD_CA_FILE"])


def named_server() -> str | None:
    """The address that was given; None: the tests start their own server."""
    return _named.get("address")


def look() -> None:
    """Notes whether the server has been used before the tests; ends them when there is none."""
    address = named_server()
    if address is None:
        return
    try:
        with jaxd.connect(address, token=_secrets.get("JAXD_TOKEN")) as client:
            seen = client.statistics()
    except jaxd.errors.JaxdError as error:
        pytest.exit(f"{_OPTION} {address}: {error}", returncode=4)
    if seen.calls or seen.disk_files:
        _named["used"] = "yes"


def unused_server_needed() -> None:
    """Skips the test that comes here where there may be nothing left to build."""
    if "used" in _named:
        pytest.skip(f"counts builds, and the server of {_OPTION} has been used before")


def libraries_needed(*names: str) -> None:
    """Skips the test that comes here, unless these modules are installed on both ends."""
    for name in names:
        pytest.importorskip(name)
        if not _installed_there(name):
            pytest.skip(f"the server of {_OPTION} has no {name}")


@functools.cache
def _installed_there(name: str) -> bool:
    address = named_server()
    if address is None:
        return True
    asked_now = uuid.uuid4().hex  # what an earlier run was told may not be so any more
    with jaxd.connect(address, token=_secrets.get("JAXD_TOKEN")) as client:
        found = client.persistent_call(lambda name, _: importlib.util.find_spec(name) is not None)
        return bool(found(name, asked_now))


def secrets() -> Mapping[str, str]:
    """What processes need to be admitted there, as environment variables."""
    return _secrets


def own_server_needed() -> None:
    """Skips the test that comes here, unless the tests start their own servers."""
    if _named:
        pytest.skip(_REASON)


class AnotherServer:
    """What `LiveServer` is to tests that only call; the others are skipped when they ask for more.

    Attributes:
        unix: its address, whatever that is: most tests only want one.
        environment: for client processes that are to use it.
    """

    def __init__(self, address: str, directory: Path) -> None:
        self.unix = address
        self.environment = source_environment(directory, JAXD_SERVER=address, **secrets())

    def run(self, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a client program in a fresh process that uses this server."""
        return run_client(program, *arguments, environment=self.environment | more)

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"{_REASON} (for its {name})")
