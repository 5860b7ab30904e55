from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd.connection import discovery, local_server
from jaxd.connection.discovery import find_server
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.server.host_process import HostProcess


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalServerFiles]:
    """What was started in the background, without anything being started."""
    calls: list[LocalServerFiles] = []
    monkeypatch.setattr(
        local_server, "start_background", lambda files, deadline: calls.append(files)
    )
    return calls


def test_a_named_server_is_taken_as_it_is(runtime: Path, started: list[LocalServerFiles]) -> None:
    """Whether it answers is found out by connecting, once."""
    named = Address.tcp("gpu-host", 1)
    assert find_server(Settings(server=named)) == named
    assert started == []


def test_a_running_local_server_is_found(
    start_host: Callable[..., HostProcess], started: list[LocalServerFiles]
) -> None:
    """Nothing is started then, and the extra is not needed."""
    listening = start_host().wait_until_ready()
    assert str(find_server(Settings(autostart=False))) == listening["address"]
    assert started == []


def test_a_local_server_is_started_when_none_runs(
    runtime: Path, started: list[LocalServerFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its address is where it will answer."""
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    files = LocalServerFiles.of_this_environment()
    assert find_server(Settings()) == Address.unix(files.socket)
    assert started == [files]


def test_none_is_started_when_that_is_switched_off(
    runtime: Path, started: list[LocalServerFiles]
) -> None:
    """The error names the two ways out."""
    with pytest.raises(NoServer, match="`jaxd start`, or set JAXD_SERVER"):
        find_server(Settings(autostart=False))
    assert started == []


def test_without_the_extra_both_ways_out_are_named(
    runtime: Path, started: list[LocalServerFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A light client cannot start a server, and says what would help."""
    monkeypatch.setattr(discovery, "has_server_extra", lambda: False)
    with pytest.raises(NoServer, match=r"pip install 'jaxd\[server\]'.*JAXD_SERVER"):
        find_server(Settings())
    with pytest.raises(ConfigurationError, match=r"pip install 'jaxd\[server\]'"):
        discovery.require_server_extra()
    assert started == []


def test_without_unix_sockets_a_server_has_to_be_named(
    runtime: Path, started: list[LocalServerFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client on such a system is told so, and can still use any server on TCP."""
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(NoServer, match="JAXD_SERVER"):
        find_server(Settings())
    assert find_server(Settings(server=Address.tcp("gpu", 1))) == Address.tcp("gpu", 1)
    assert started == []


def test_importing_it_is_light(runtime: Path) -> None:
    """What only a start needs is not loaded by a client that finds its server."""
    slow = {"subprocess", "fcntl", "tomllib", "asyncio", "numpy", "rpyc", "jax", "logging"}
    program = f"import sys, jaxd.connection.discovery; print(*{slow!r} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert loaded == []


def test_a_socket_in_a_directory_that_others_can_enter_is_not_used(runtime: Path) -> None:
    """Whoever made it could answer in the server's place, and would get all that is sent."""
    directory = LocalServerFiles.of_this_environment().directory
    os.makedirs(directory)
    os.chmod(directory, 0o777)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        find_server(Settings.resolve())
