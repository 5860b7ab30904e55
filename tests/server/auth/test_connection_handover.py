from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.network.handshake import ClientIdentity, local_peer
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth import connection_handover
from jaxd_server.auth.authenticator import AuthenticatedPeer
from jaxd_server.auth.connection_handover import HandoverReceiver, hand_over

Pair = tuple[socket.socket, socket.socket]
ME = ClientIdentity(local_peer({"jax": "1"}), "session", "uid:7", 3)


@pytest.fixture
def worker(runtime: Path) -> Iterator[socket.socket]:
    """Where a worker listens."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{runtime}/w.sock")
        listening.listen()
        listening.settimeout(30)
        yield listening


@pytest.fixture
def client() -> Iterator[Pair]:
    """A client's connection: its end, and the gateway's."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        yield theirs, ours


def taken(worker: socket.socket, principal: str = "uid:7") -> AuthenticatedPeer:
    """What the worker makes of who comes next."""
    line, _ = worker.accept()
    try:
        return HandoverReceiver(principal).admit(line)
    except BaseException:
        line.close()  # as an acceptor does
        raise


def test_a_plain_connection_goes_over_itself(worker: socket.socket, client: Pair) -> None:
    """The worker talks to the client directly; the gateway may end."""
    theirs, ours = client
    ours.settimeout(5)  # as after a handshake
    hand_over(worker.getsockname(), AuthenticatedPeer(ours, "uid:7", ME, proof="p")).close()
    ours.close()
    admitted = taken(worker)
    with closing(admitted.stream) as line:
        line.sendall(b"welcome")
        assert theirs.recv(7) == b"welcome"
        theirs.sendall(b"hello")
        assert line.recv(5) == b"hello"
    assert theirs.recv(1) == b""  # nobody else holds it open
    assert (admitted.principal, admitted.proof, admitted.account) == ("uid:7", "p", None)
    assert admitted.client_identity == ME


def test_what_only_the_gateway_can_read_goes_over_the_line(worker: socket.socket) -> None:
    """Of which nothing is read that belongs to the client."""
    with hand_over(
        worker.getsockname(), AuthenticatedPeer(cast("TlsSocket", object()), "uid:7", ME)
    ) as line:
        line.sendall(b"from the client")
        admitted = taken(worker)
        with closing(admitted.stream) as inner:
            assert inner.recv(100) == b"from the client"
    assert admitted.client_identity == ME
    assert admitted.proof is None


def test_a_stock_client_is_handed_over_as_it_came(worker: socket.socket, client: Pair) -> None:
    """It has said nothing of itself, and may take its time to say something."""
    hand_over(worker.getsockname(), AuthenticatedPeer(client[1], "uid:7")).close()
    admitted = taken(worker)
    with closing(admitted.stream) as line:
        assert admitted.client_identity is None
        assert line.gettimeout() is None


def test_a_client_of_somebody_else_is_refused(worker: socket.socket, client: Pair) -> None:
    """Its connection ends."""
    theirs, ours = client
    hand_over(worker.getsockname(), AuthenticatedPeer(ours, "uid:8", ME)).close()
    ours.close()
    with pytest.raises(ProtocolError, match="this worker serves no clients of uid:8"):
        taken(worker)
    assert theirs.recv(1) == b""


def test_only_the_servers_user_hands_over(
    worker: socket.socket, client: Pair, monkeypatch: Any
) -> None:
    """Also where somebody else could get at the socket."""
    hand_over(worker.getsockname(), AuthenticatedPeer(client[1], "uid:7", ME)).close()
    monkeypatch.setattr(connection_handover, "peer_uid", lambda sock: os.getuid() + 1)
    with pytest.raises(ProtocolError, match="own gateway"):
        taken(worker)


@pytest.mark.parametrize("said", [b"", b"\x00\x00", b"\x00\x00\x00\x09{", b"\x7f\x00\x00\x00"])
def test_half_a_message_is_none(worker: socket.socket, said: bytes) -> None:
    """A gateway that dies in the middle, or nonsense."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(worker.getsockname())
        line.sendall(said)
    with pytest.raises((EOFError, ProtocolError)):
        taken(worker)


def test_where_no_worker_listens_that_is_an_error(runtime: Path, client: Pair) -> None:
    """For the gateway to tell of."""
    with pytest.raises(FileNotFoundError):
        hand_over(f"{runtime}/nobody.sock", AuthenticatedPeer(client[1], "uid:7", ME))


def test_a_worker_that_takes_nobody_in_holds_up_nobody(runtime: Path, client: Pair) -> None:
    """Once as many wait for it as can, the gateway does not wait as well."""
    path = f"{runtime}/full.sock"
    admitted = AuthenticatedPeer(client[1], "uid:7", ME)
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as waiting:
        listening.bind(path)
        listening.listen(1)
        for _ in range(2):
            waiting.enter_context(hand_over(path, admitted))
        with pytest.raises(BlockingIOError):
            hand_over(path, admitted)
