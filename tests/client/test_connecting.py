"""From an address to a connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from jaxd import connecting, errors
from jaxd.connecting import open_connection, probe
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from tests.live_server import TOKEN, LiveServer


class Nobody:
    """Answers nothing."""

    def question(self, verb: str, args: tuple[Any, ...]) -> Any:
        raise KeyError(verb)

    def call_back(self, *_: Any) -> Any:
        raise AssertionError("no call is open")

    def event(self, *_: Any) -> None:
        raise AssertionError("no call is open")


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_an_open_connection_answers(live: LiveServer, scheme: str) -> None:
    """And the welcome says what the server takes."""
    address = Address.parse(live.unix if scheme == "unix" else live.tcp)
    connection, welcome = open_connection(address, Settings(token=TOKEN), None, Nobody())
    assert connection.alive
    assert welcome["slots"] > 0
    assert welcome["max_frame_bytes"] > 0
    value, frame = connection.request("statistics", ())
    assert value.startswith("{")
    assert list(frame.buffers) == []
    connection.shut()
    assert not connection.alive


def test_sockets_wait_without_end_and_without_delay(live: LiveServer) -> None:
    """No timeout that a busy server would run into, no Nagle, and dead peers are noticed."""
    connection, _ = open_connection(Address.parse(live.tcp), Settings(token=TOKEN), None, Nobody())
    sock = connection._channel.stream.sock
    assert sock.gettimeout() is None
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    connection.shut()


def test_a_probe_tells_what_is_there(live: LiveServer) -> None:
    """And leaves no connection behind."""
    found = probe(Address.parse(live.tcp), Settings(token=TOKEN))
    assert found["pid"] == live.worker_pid()
    assert found["python"][0] == 3
    assert "jax" in found["versions"]
    assert "peer" not in found


def test_without_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which address to use instead."""
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(errors.ConfigurationError, match="tcp://"):
        probe(Address.unix("/tmp/any.sock"), Settings())


def _silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


def _hangs_up(peer: socket.socket) -> None:
    peer.recv(1)


def _strange_server(path: Path, behave: Callable[[socket.socket], None]) -> Thread:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as peer:
            behave(peer)
            if behave is not _hangs_up:
                _silent(peer)

    thread = Thread(target=serve)
    thread.start()
    return thread


def _refuses(peer: socket.socket) -> None:
    reason = b'{"error": "Odd", "text": "because"}'
    peer.sendall(len(reason).to_bytes(2, "big") + reason)


@pytest.mark.parametrize(
    ("behave", "error", "hint"),
    [
        (_silent, errors.NoServer, "jaxd status"),
        (_hangs_up, errors.ProtocolError, "jaxd doctor"),
        (lambda peer: peer.sendall(b"\0\x02{}"), errors.ProtocolError, None),
        (lambda peer: peer.sendall(b"\0\x02[]"), errors.ProtocolError, None),
        (lambda peer: peer.sendall(b"\xff\xff"), errors.ProtocolError, None),
        (_refuses, errors.NoServer, "because"),
    ],
    ids=["silent", "hangs up", "empty", "list", "endless", "refuses"],
)
def test_a_strange_server(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    behave: Callable[[socket.socket], None],
    error: type[Exception],
    hint: str | None,
) -> None:
    """Each ends in a typed error, in time."""
    monkeypatch.setattr(connecting, "GREETING_S", 0.2)
    thread = _strange_server(runtime / "s.sock", behave)
    with pytest.raises(error, match=hint):
        probe(Address.unix(f"{runtime}/s.sock"), Settings())
    thread.join()
