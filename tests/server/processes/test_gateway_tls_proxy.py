from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.processes.gateway import relay_tls
from tests.certificates import tls_pair

MANY = bytes(range(256)) * 20_000


class Relayed(NamedTuple):
    """A client and a worker, with the relay between them.

    Attributes:
        client: speaks TLS.
        worker: does not.
        thread: in which the relay works.
    """

    client: TlsSocket
    worker: socket.socket
    thread: threading.Thread


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    """One of each."""
    client, gateway = tls_pair(*socket.socketpair())
    worker, inner = socket.socketpair()
    thread = threading.Thread(target=relay_tls, args=(gateway, inner))
    thread.start()
    client.settimeout(30)
    yield Relayed(client, worker, thread)
    client.close()
    worker.close()
    thread.join(30)
    assert not thread.is_alive()
    gateway.close()
    inner.close()


def test_what_is_said_arrives_either_way(relayed: Relayed) -> None:
    """Word by word."""
    relayed.client.sendall(b"question")
    assert relayed.worker.recv(100) == b"question"
    relayed.worker.sendall(b"answer")
    assert relayed.client.recv(100) == b"answer"


def test_much_goes_both_ways_at_once(relayed: Relayed) -> None:
    """More than any buffer on the way holds; neither direction waits for the other."""
    got = list[bytes]()

    def work() -> None:
        sending = threading.Thread(target=relayed.worker.sendall, args=(MANY,))
        sending.start()
        got.append(relayed.worker.recv(len(MANY), socket.MSG_WAITALL))
        sending.join(30)

    working = threading.Thread(target=work)
    working.start()
    sending = threading.Thread(target=relayed.client.sendall, args=(MANY,))
    sending.start()
    assert relayed.client.recv(len(MANY), socket.MSG_WAITALL) == MANY
    sending.join(30)
    working.join(30)
    assert got == [MANY]


def test_the_end_of_either_is_the_end_of_the_other(relayed: Relayed) -> None:
    """That of the worker for its client ..."""
    relayed.worker.close()
    assert relayed.client.recv(1) == b""


def test_a_client_that_goes_is_gone_for_its_worker(relayed: Relayed) -> None:
    """... and the other way round."""
    relayed.client.close()
    assert relayed.worker.recv(1) == b""
