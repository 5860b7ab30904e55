from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jaxd.cli.doctor import connection
from jaxd.cli.doctor.context import Check, DoctorContext
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import VersionMismatch
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, make_private_directory
from tests.client.cli.doctor.contexts import FakeContext, gpu_machine
from tests.live_server import TOKEN, LiveServer
from tests.server.host_process import HostProcess


@pytest.fixture
def files(runtime: Path) -> LocalServerFiles:
    """The files of the local server; their directory exists and is private."""
    files = LocalServerFiles.of_this_environment()
    make_private_directory(files.directory)
    return files


def local(files: LocalServerFiles) -> Check:
    """What is found of the local server."""
    return connection.local_server(DoctorContext(Settings(), files))


def test_a_dead_socket_is_noted(files: LocalServerFiles) -> None:
    """It does no harm, and one wonders."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(files.socket)
    assert local(files).state == "note"


def test_a_file_in_the_place_of_the_socket_is_bad(files: LocalServerFiles) -> None:
    """No server would replace it."""
    Path(files.socket).touch()
    assert local(files).advice == f"Run: rm {files.socket}"


def test_a_socket_without_its_host_is_bad(files: LocalServerFiles) -> None:
    """Something else holds it."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(files.socket)
        other.listen()
        assert local(files).found == "runs without its host"


def test_a_running_server_is_asked(
    files: LocalServerFiles, start_host: Callable[..., HostProcess]
) -> None:
    """For its state."""
    host = start_host()
    host.wait_until_ready()
    assert local(files).found == f"ready, process {host.process.pid}"


def steps(address: Address | str, token: str | None = TOKEN) -> list[Check]:
    """How far a server is reached."""
    place = Address.parse(address) if isinstance(address, str) else address
    return connection.steps(DoctorContext(Settings(server=place, token=token)))


def last(address: Address | str, token: str | None = TOKEN) -> Check:
    """The step that failed."""
    found = steps(address, token)
    assert {check.state for check in found[:-1]} <= {"ok"}
    assert found[-1].state == "bad"
    return found[-1]


def test_a_server_is_reached_in_steps(live: LiveServer, runtime: Path) -> None:
    """The name and the port where there are such; in the end, its devices."""
    for address in (live.unix, live.tcp, live.tls):
        found = steps(address)
        assert [check.state for check in found] == ["ok"] * len(found)
        names = ["connection", "versions", "devices"]
        ahead = [] if address == live.unix else ["host name", "port"]
        assert [check.name for check in found] == ahead + names
        assert found[-1].found.startswith("cpu:0")


def test_a_server_that_does_not_use_the_gpu_beside_it(
    live: LiveServer, runtime: Path, tmp_path: Path
) -> None:
    """Works, and not as fast as it could."""
    server = Address.parse(live.unix)
    found = connection.devices(FakeContext(Settings(server=server), root=gpu_machine(tmp_path)))
    assert (found.state, "jaxd stop" in found.advice) == ("bad", True)
    away = connection.devices(FakeContext(Settings(server=Address.parse(live.tls), token=TOKEN)))
    assert (away.state, "jaxd doctor" in away.advice) == ("ok", True)


def test_no_server_is_started(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking changes nothing; in an environment without jax a first call cannot do it either."""
    (found,) = connection.steps(DoctorContext(Settings()))
    assert (found.state, "first call starts one" in found.found) == ("ok", True)
    monkeypatch.setattr(connection, "has_server_extra", lambda: False)
    (found,) = connection.steps(DoctorContext(Settings()))
    assert (found.state, "JAXD_SERVER" in found.advice) == ("note", True)


def test_a_name_that_means_nothing(runtime: Path) -> None:
    """Nothing else is tried then."""
    found = last("tls://no-such-host.invalid:1")
    assert found.name == "host name"
    assert "JAXD_SERVER" in found.advice


def test_a_closed_port(runtime: Path) -> None:
    """With what opens it over there."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    found = last(Address.tls("127.0.0.1", port))
    assert found.name == "port"
    assert f"jaxd serve --listen tls://0.0.0.0:{port}" in found.advice
    assert f"docker run -p {port}:{port}" in found.advice
    director = Address.tls("127.0.0.1", port)._replace(is_pool=True)
    assert last(director).advice.endswith("jaxd pool up pool.toml")


def test_a_port_behind_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is something else than a refusal."""

    def silence(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silence)
    found = connection.server_port(Address.tcp("127.0.0.1", 99))
    assert "firewall" in found.advice
    assert "ssh://127.0.0.1" in found.advice


def test_the_step_of_the_handshake_that_fails(live: LiveServer, runtime: Path) -> None:
    """Certificate, token, protocol: each has its own words."""
    wrong_pin = Address.parse(live.tls)._replace(pin="0" * 64)
    assert last(wrong_pin).name == "certificate"
    assert last(wrong_pin._replace(pin="")).name == "certificate"
    assert last(live.tls, "wrong-token-for-tests-only").name == "token"
    assert last(live.tcp, None).name == "token"
    assert last(live.tcp.replace("tcp", "tls")).name == "protocol"


def test_a_socket_that_may_be_anybodys(runtime: Path) -> None:
    """It is the connection that is wrong, and neither the token nor a certificate."""
    runtime.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{runtime}/s.sock")
        sock.listen()
        found = last(f"unix://{runtime}/s.sock")
    assert (found.name, "others can put a socket" in found.advice) == ("connection", True)


def test_another_python_over_there(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words of the handshake, which say what to start."""

    def refuse(*_: object) -> None:
        raise VersionMismatch("the server runs Python 3.12. Start one with 3.11.")

    monkeypatch.setattr("jaxd.connection.connect.handshake_with_server", refuse)
    found = last(live.unix)
    assert found.name == "versions"
    assert found.advice.endswith("Start one with 3.11.")


def test_other_versions_on_the_server_are_noted(runtime: Path) -> None:
    """Those that both sides have."""
    here = FakeContext(Settings(), installed={"numpy": "2.0", "jax": "1"})
    theirs = {"versions": {"numpy": "1.0", "jax": "1", "nowhere-here": "1"}}
    found = connection.versions(here, theirs)
    assert (found.state, found.found) == ("note", "numpy 2.0 here, 1.0 there")
    same = replace(here, installed={"jax": "1"})
    assert connection.versions(same, theirs).state == "ok"
