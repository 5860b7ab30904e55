"""A proxy between a client that uses TLS and a worker that does not."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import Final

from jaxd_protocol.wire import tune_socket
from jaxd_protocol.wire.tls_socket import TlsSocket

_STEP_BYTES: Final = 1 << 18
_CONNECTION_ENDED: Final = (EOFError, OSError, ssl.SSLError)


def relay_tls(client: TlsSocket, worker: socket.socket) -> None:
    """Passes bytes both ways until either end closes; both are shut then.

    Takes the calling thread for what the worker says, and another one for the client. Who is slow
    to read slows the other end down: nothing is kept here but one piece each way.
    """
    client.settimeout(None)
    tune_socket(client.raw)
    worker.settimeout(None)
    inward = threading.Thread(
        target=_inward, args=(client, worker), name="jaxd-tls-inward", daemon=True
    )
    inward.start()
    try:
        _outward(client, worker)
    finally:
        _shut(client.raw, worker)
        inward.join()


def _inward(client: TlsSocket, worker: socket.socket) -> None:
    room = memoryview(bytearray(_STEP_BYTES))
    try:
        while True:
            counts: list[int] = []
            client.receive_into([room], counts)
            worker.sendall(room[: sum(counts)])
    except _CONNECTION_ENDED:
        _shut(client.raw, worker)


def _outward(client: TlsSocket, worker: socket.socket) -> None:
    room = memoryview(bytearray(_STEP_BYTES))
    with suppress(*_CONNECTION_ENDED):
        while count := worker.recv_into(room):
            rest = room[:count]
            while rest:
                sent: list[int] = []
                client.send_some([rest], sent)
                rest = rest[sum(sent) :]
            client.flush()


def _shut(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):  # it has ended by itself
            sock.shutdown(socket.SHUT_RDWR)
