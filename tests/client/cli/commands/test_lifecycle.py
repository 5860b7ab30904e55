from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd.cli import __main__, query
from jaxd.cli.__main__ import main
from jaxd.connection import discovery
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.handshake import MAGIC, Transcript, local_peer, send_message
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.live_server import LiveServer
from tests.server.host_process import HostProcess


def test_it_starts_once(files: LocalServerFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time it says so, and that is no failure."""
    assert main(["start"]) == 0
    assert f"started a server at unix://{files.socket}" in capsys.readouterr().out
    assert main(["start"]) == 0
    assert "runs already" in capsys.readouterr().out


def test_json_says_the_same(files: LocalServerFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts."""
    for started in (True, False):
        assert main(["start", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "server": f"unix://{files.socket}",
            "log": files.log,
            "started": started,
        }


@pytest.mark.slow
def test_a_start_that_fails_quotes_the_server(
    files: LocalServerFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit code 1 and no traceback of ours."""
    monkeypatch.setenv("FAKE_WORKER", "fail")
    assert main(["start"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jaxd: the worker ended 5 times before it was ready")
    assert "libaccelerator.so" in said


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


@pytest.fixture(autouse=True)
def _no_server_of_the_user(runtime: Path) -> None:
    """None that runs on this machine is restarted."""


@pytest.mark.slow
def test_it_returns_when_the_next_worker_is_ready(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which one that is."""
    start_host().wait_until_ready()
    assert main(["restart"]) == 0
    assert capsys.readouterr().out.startswith("worker 2 is ready after ")
    assert main(["restart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 3


def test_of_several_workers_it_says_which_are_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that it failed where one was not replaced."""
    new = {"principal": "account:alice", "epoch": 2, "seconds": 3.0}
    old = {"principal": "account:bob", "refused": "it holds arrays"}
    reply = {"workers": [new, old], "refused": "account:bob: it holds arrays"}
    monkeypatch.setattr(query, "send_request", lambda path, request, uid, is_slow: reply)
    assert main(["restart"]) == 1
    said = capsys.readouterr()
    assert said.out == "worker 2 of account:alice is ready after 3.0 s\n"
    assert "account:bob: it holds arrays." in said.err


def test_what_is_refused_is_a_failure(
    start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why, and what to do."""
    start_host(FAKE_WORKER="needed").wait_until_ready()
    assert main(["restart"]) == 1
    said = capsys.readouterr().err
    assert "it holds arrays of uid:7. Try again later, or: jaxd restart --force\n" in said
    assert main(["restart", "--force"]) == 0


def test_without_jax_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    monkeypatch.setattr(discovery, "has_server_extra", lambda: False)
    assert main(["serve"]) == 1
    assert "pip install 'jaxd[server]'" in capsys.readouterr().err
    assert ConfigurationError.blame == "caller"


@pytest.mark.slow
def test_its_help_is_the_servers(runtime: Path) -> None:
    """Also where no server could run, and also by `jaxd help`."""
    said, helped = (
        subprocess.run(
            [sys.executable, "-P", "-m", "jaxd.cli", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for words in (["serve", "--help-all"], ["help", "serve"])
    )
    assert "--worker-per-principal" in helped
    assert said.startswith("usage: jaxd serve ")
    assert "--insecure-plaintext" in said


class ScriptedSocket:
    """What a client says first, as bytes."""

    def __init__(self) -> None:
        self.data = MAGIC
        hello = {**local_peer({}).to_message(), "session": None, "nonce": "0" * 32}
        send_message(self, hello, Transcript())

    def sendall(self, data: bytes, /) -> None:
        self.data += data

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        raise NotImplementedError


def test_a_server_answers_through_it(live: LiveServer) -> None:
    """To what comes in on stdin, on stdout, behind the line that says so."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxd.cli", "relay"],
        input=ScriptedSocket().data,
        env=live.environment,
        capture_output=True,
        check=False,
        timeout=50,
    )
    line, _, rest = done.stdout.partition(b"\n")
    assert line == b"jaxd-relay: connected"
    assert b'"session"' in rest
    assert done.returncode == 0


def test_only_a_unix_socket_is_joined(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything else asks for a token, which ssh replaces."""
    assert __main__.main(["relay", "--server", live.tcp]) == 1
    assert "--server unix:///path" in capsys.readouterr().err
