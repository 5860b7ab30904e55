"""Which server a command is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.cli.query import control_socket_of, server_address
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles


def test_a_server_that_was_named_is_meant(runtime: Path) -> None:
    """Whether it runs or not."""
    address = Address.tcp("gpu-host", 1)
    assert server_address(Settings(server=address)) == address


def test_without_a_name_it_is_the_local_one(runtime: Path) -> None:
    """The one of this environment."""
    files = LocalServerFiles.of_this_environment()
    assert server_address(Settings()) == Address.unix(files.socket)
    assert control_socket_of(Address.unix(files.socket)) == files.control


def test_a_server_elsewhere_has_no_control_socket_here() -> None:
    """The message says where to run the command."""
    with pytest.raises(ConfigurationError, match="on gpu-host"):
        control_socket_of(Address.tcp("gpu-host", 1))
