from __future__ import annotations

import socket
from pathlib import Path

import pytest

from jaxd.connection import connect, control_client
from jaxd.connection.control_client import send_request, stop_and_wait
from jaxd_protocol.errors import AuthenticationFailed, ConnectionLost, ProtocolError


def test_where_nobody_is_there_is_no_reply(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, or no such sockets on this system."""
    path = str(runtime / "control")
    assert send_request(path, {"ask": "status"}) is None
    assert not stop_and_wait(path)
    monkeypatch.delattr(socket, "AF_UNIX")
    assert send_request(path, {"ask": "status"}) is None


def test_a_host_that_says_nothing_is_an_error(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not mistaken for one that is gone."""
    monkeypatch.setattr(control_client, "_REPLY_TIMEOUT_S", 0.05)
    path = str(runtime / "control")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(ConnectionLost, match=f"{path} but does not reply.*lsof {path}"):
            send_request(path, {"ask": "status"})


@pytest.mark.parametrize("reply", [b"hello\n", b"\xff\n", b"[]\n", b"{\n"])
def test_a_reply_that_is_none_of_jaxds_is_an_error(runtime: Path, reply: bytes) -> None:
    """Which says where to look, instead of how JSON is read."""
    path = str(runtime / "control")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(reply)
        with pytest.raises(ProtocolError, match=f"{path} does not reply as jaxd.*lsof {path}"):
            control_client._exchange(ours, path, {"ask": "status"})


def test_a_host_that_goes_away_has_no_reply(runtime: Path) -> None:
    """Its end and its absence are the same to who asks."""
    path = str(runtime / "control")
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert control_client._exchange(ours, path, {"ask": "status"}) is None


def test_a_control_socket_of_another_user_is_told_nothing(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have taken the server's place; the address can name that user."""
    path = f"{runtime}/s.sock.control"
    monkeypatch.setattr(connect, "peer_uid", lambda sock: 4321)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        for command in (lambda: send_request(path, {"ask": "status"}), lambda: stop_and_wait(path)):
            with pytest.raises(AuthenticationFailed, match=r"\?uid=4321"):
                command()
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(1) == b""
