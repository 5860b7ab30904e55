from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from jaxd.cli import __main__
from jaxd_protocol.network.handshake import MAGIC, Transcript, local_peer, send_message
from tests.live_server import LiveServer

if TYPE_CHECKING:
    import pytest


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
