from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from tests.server.host_process import HostProcess

StartHost = Callable[..., HostProcess]


def test_it_returns_when_the_server_is_gone(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """The local server, when no other is named."""
    host = start_host()
    address = host.wait_until_ready()["address"]
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == f"stopped the server at {address}\n"
    assert host.wait()[0] == 0


def test_stopping_what_does_not_run_is_no_failure(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Afterwards no server runs, as asked."""
    assert main(["stop"]) == 0
    assert capsys.readouterr().out.startswith("no server runs at unix://")


def test_a_named_server_on_tcp_is_stopped_by_its_port(start_host: StartHost) -> None:
    """Its control socket is found from the address."""
    host = start_host("--listen", "tcp://127.0.0.1:0", "--allow-unauthenticated-loopback")
    assert main(["stop", "--server", host.wait_until_ready()["address"]]) == 0
    assert host.wait()[0] == 0


def test_now_does_not_wait_for_running_calls(start_host: StartHost) -> None:
    """For who knows that they never end."""
    host = start_host(FAKE_WORKER="busy")
    host.wait_until_ready()
    assert main(["stop", "--now"]) == 0
    assert host.wait()[0] == 1


def test_a_server_elsewhere_is_not_ours_to_stop(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says where to type it."""
    assert main(["stop", "--server", "tcp://gpu-host:1"]) == 1
    assert capsys.readouterr().err.endswith("Run the same command on gpu-host.\n")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_what_listens_without_its_control_socket_is_not_said_to_be_gone(
    runtime: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have been started from another environment, or with --control."""
    with socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX) as listener:
        listener.bind(("127.0.0.1", 0) if kind == "tcp" else str(runtime / "server.sock"))
        listener.listen()
        port = listener.getsockname()[1] if kind == "tcp" else 0
        address = f"tcp://127.0.0.1:{port}" if kind == "tcp" else f"unix://{runtime}/server.sock"
        assert main(["stop", "--server", address]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"something listens at {address}" in said.err
    assert said.err.endswith("in the environment where it was started.\n")


def test_a_port_that_nobody_listens_on_has_no_server(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with the local socket."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["stop", "--server", address]) == 0
    assert capsys.readouterr().out == f"no server runs at {address}\n"
