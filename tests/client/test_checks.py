from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxd import checks
from jaxd.checks import Check, all_checks
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import VersionMismatch
from jaxd_protocol.paths import LocalServerFiles, private_directory
from jaxd_protocol.tokens import default_token_file, write_token_file
from tests.server.host_process import HostProcess

NAMED = Settings(server=Address.tcp("gpu-host", 1))

Probe = Callable[[Address, Settings], dict[str, Any]]


@pytest.fixture
def files(runtime: Path) -> LocalServerFiles:
    """The files of the local server; their directory exists and is private."""
    files = LocalServerFiles.of_this_environment()
    private_directory(files.directory)
    Path(files.directory).chmod(0o700)
    return files


def connect_with(monkeypatch: pytest.MonkeyPatch, probe: Probe) -> None:
    """Lets `probe` stand for a whole handshake."""
    module = ModuleType("jaxd.connecting")
    module.__dict__["probe"] = probe
    monkeypatch.setitem(sys.modules, "jaxd.connecting", module)


def check(name: str, settings: Settings | None = None) -> Check:
    """The one check of that name."""
    (found,) = [one for one in all_checks(settings or Settings()) if one.name == name]
    return found


def test_a_fresh_machine_has_nothing_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no token and no directory are how everybody begins."""
    monkeypatch.setattr(checks, "has_server_extra", lambda: True)
    assert [one for one in all_checks(Settings()) if one.state != "ok"] == []


def test_without_jax_it_depends_on_the_server(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A light client of a server elsewhere needs none."""
    monkeypatch.setattr(checks, "has_server_extra", lambda: False)
    connect_with(monkeypatch, lambda address, settings: {})
    assert check("server extra").state == "bad"
    assert check("server extra", NAMED).state == "note"


def test_a_missing_package_is_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that brings it."""
    monkeypatch.setattr(checks, "_version", lambda name: None)
    assert check("rpyc") == Check(
        "rpyc", "bad", "not installed", "Run: pip install --force-reinstall jaxd"
    )


def test_a_directory_that_others_can_enter_is_bad(files: LocalServerFiles) -> None:
    """With the command that closes it."""
    assert check("runtime directory").state == "ok"
    Path(files.directory).chmod(0o755)
    assert f"chmod 700 {files.directory}" in check("runtime directory").advice


def test_a_full_disk_is_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket, a log and a lock need a little room."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4096))
    assert check("disk").state == "bad"


def test_a_token_that_others_can_read_is_bad(runtime: Path) -> None:
    """And one that is private is named."""
    write_token_file(default_token_file())
    assert check("token").found == f"in {default_token_file()}"
    Path(default_token_file()).chmod(0o644)
    assert check("token").state == "bad"


def test_a_dead_socket_is_noted(files: LocalServerFiles) -> None:
    """It does no harm, and one wonders."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(files.socket)
    assert check("local server").state == "note"


def test_a_file_in_the_place_of_the_socket_is_bad(files: LocalServerFiles) -> None:
    """No server would replace it."""
    Path(files.socket).touch()
    assert check("local server").advice == f"Run: rm {files.socket}"


def test_a_socket_without_its_host_is_bad(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else holds it."""
    connect_with(monkeypatch, lambda address, settings: {})
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(files.socket)
        other.listen()
        assert check("local server").found == "runs without its host"


def test_a_running_server_is_asked_and_connected_to(
    start_host: Callable[..., HostProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state, and one whole handshake."""
    tried: list[Address] = []

    def probe(address: Address, settings: Settings) -> dict[str, Any]:
        tried.append(address)
        return {}

    connect_with(monkeypatch, probe)
    host = start_host()
    address = host.wait_until_ready()["address"]
    assert check("local server").found == f"ready, process {host.process.pid}"
    assert [str(one) for one in tried] == [address]


def test_a_refused_handshake_is_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the server's own words."""

    def probe(address: Address, settings: Settings) -> dict[str, Any]:
        raise VersionMismatch("the server runs Python 3.12. Start one with 3.11.")

    connect_with(monkeypatch, probe)
    assert check("connection", NAMED).advice.endswith("Start one with 3.11.")


def test_other_versions_on_the_server_are_noted(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that both sides have."""
    versions = {"numpy": "1.0", "nowhere-here": "1"}
    connect_with(monkeypatch, lambda address, settings: {"versions": versions})
    found = check("connection", NAMED)
    assert found.state == "note"
    assert "numpy" in found.found
    assert "1.0 there" in found.found
    assert "nowhere" not in found.found
