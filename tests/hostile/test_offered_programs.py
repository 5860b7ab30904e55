"""A hostile server offers programs, which are code: none is opened but of this user's process."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect
from jaxd.connection import connect as connecting
from jaxd.errors import PlaceRefused
from jaxd.tracing import here
from jaxd_protocol.base.process import machine_id
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.handshake import (
    MAGIC,
    UNIX,
    ChannelBinding,
    finish_handshake,
    handshake_with_client,
)
from tests.client.fake_server import FakeServer, Reply, Request, _Connection

TOKEN = "a-token-that-the-hostile-server-has"
STRANGER = 12345
X = np.ones(2, "f4")


class Code:
    """Makes a file where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


class OfferingServer(FakeServer):
    """Says that it is all that a client asks of a server from which it takes a program."""

    def __init__(self, path: str, canary: Path) -> None:
        super().__init__(
            path,
            call=lambda _: ((OK, b"N", b"", b"", b""), ()),
            program=self._offer,
            compile=self._offer,
            ready=lambda _: (json.dumps({"ready": False}), ()),
        )
        self._data = pickle.dumps(Code(canary))
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.tcp = f"tcp://127.0.0.1:{self._tcp.getsockname()[1]}"
        threading.Thread(target=self._accept_tcp, daemon=True).start()

    def close(self) -> None:
        """Both listeners."""
        self._tcp.shutdown(socket.SHUT_RDWR)
        self._tcp.close()
        super().close()

    def _offer(self, _: Request) -> Reply:
        report = {"id": "00" * 16, "bytes": len(self._data), "inputs": 1, "outputs": 0}
        report |= {"devices": [0], "order": []}
        return (OK, json.dumps(report), b"N"), (memoryview(self._data),)

    def _accept_tcp(self) -> None:
        while True:
            try:
                sock, _ = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        if sock.recv(len(MAGIC), socket.MSG_WAITALL) != MAGIC:
            return sock.close()
        is_unix = sock.family == socket.AF_UNIX
        channel = UNIX if is_unix else ChannelBinding("tcp", sock=sock)
        accounts = [] if is_unix else [Account.unnamed(TOKEN)]
        _, proof = handshake_with_client(sock, channel, accounts, "me")
        welcome = {"auth": "none", "session": "s", "slots": 32, "max_frame_bytes": 1 << 24}
        welcome |= {"epoch": 1, "pid": os.getpid(), "machine": machine_id(), "platform": "cpu"}
        versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
        finish_handshake(sock, versions, proof, welcome)
        connection = _Connection(sock, self.answer)
        self._connections.append(connection)
        return connection.serve()


@pytest.fixture(autouse=True)
def taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call asks for the program, however fast the server answers."""
    monkeypatch.setattr(here, "LOAD_S", 0.0)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that an opened program makes."""
    return tmp_path / "canary"


@pytest.fixture
def server(tmp_path: Path, canary: Path) -> Iterator[OfferingServer]:
    """The hostile server."""
    tmp_path.chmod(0o700)
    server = OfferingServer(str(tmp_path / "s.sock"), canary)
    yield server
    server.close()


def call(address: str, place: Any) -> str:
    """Calls a function four times; what `why` says of its place, or the refusal."""
    with connect(address, token=TOKEN, place=place) as client:
        function = client.persistent_call(lambda x: x)
        for _ in range(4):
            function(X)
        return client.caller.placed(None)


@pytest.mark.parametrize(("place", "verb"), [("auto", "program"), ("here", "compile")])
def test_a_process_of_this_user_is_believed(
    server: OfferingServer, canary: Path, place: str, verb: str
) -> None:
    """Which is how the other tests know that they would notice."""
    call(server.address, place)
    assert len(server.of(verb)) == 1
    assert canary.exists()


@pytest.mark.parametrize("place", ["here", "auto"])
@pytest.mark.parametrize("where", ["tcp", "stranger", "root", "unknown"])
def test_nobody_else_is(
    server: OfferingServer,
    canary: Path,
    where: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over TCP, a socket of another user, of root for a user, or where the system does not say.

    Nothing is asked for, and nothing that is offered is opened.
    """
    own = os.getuid()
    owner = {"stranger": STRANGER, "root": 0, "unknown": None}.get(where, own)
    monkeypatch.setattr(connecting, "peer_uid", lambda _: owner)
    if where == "root":
        monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    address = server.tcp if where == "tcp" else f"{server.address}?uid={owner or own}"
    if place == "here":
        with pytest.raises(PlaceRefused, match="is not possible: "):
            call(address, place)
    else:
        assert call(address, place).startswith("server: ")
    assert not {"program", "ready", "compile"} & {asked.verb for asked in server.asked}
    assert not canary.exists()


def test_each_connection_is_looked_at(
    server: OfferingServer, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose place was taken by another user's after the function was first called."""
    owners = iter([os.getuid()] * 2)  # each connection is looked at twice
    monkeypatch.setattr(connecting, "peer_uid", lambda _: next(owners, STRANGER))
    offer, server.answers["program"] = server.answers["program"], server.hang_up
    with connect(f"{server.address}?uid={STRANGER}", place="auto") as client:
        function = client.persistent_call(lambda x: x)
        function(X)
        function(X)  # is asked for a program, and the connection ends
        server.answers["program"] = offer
        for _ in range(3):
            function(X)
        assert "user 12345 runs the server" in client.caller.placed(None)
    assert len(server.of("program")) == 1
    assert not canary.exists()
