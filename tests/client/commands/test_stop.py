from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxd.cli import main
from tests.server.host_process import HostProcess

if TYPE_CHECKING:
    import pytest

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
