"""A plain socket that takes a payload into a fresh buffer and answers with one byte.

`python -m benchmarks.raw_server unix PATH BYTES` or `… tcp 127.0.0.1 BYTES`.
"""

from __future__ import annotations

import socket
import sys

import numpy as np

from benchmarks.answering import serve_until_input_closes


def receive_fresh(connection: socket.socket, size: int) -> bool:
    """Receives `size` bytes into new memory; False when the peer has gone."""
    view = np.empty(size, np.uint8).data
    received = 0
    while received < size:
        count = connection.recv_into(view[received:])
        if count == 0:
            return False
        received += count
    return True


def _serve(listener: socket.socket, size: int) -> None:
    connection, _ = listener.accept()
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while receive_fresh(connection, size):
        connection.sendall(b"!")


def main() -> None:
    """Serves one connection until the input closes."""
    kind, where, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(where if kind == "unix" else (where, 0))
    listener.listen()
    port = 0 if kind == "unix" else listener.getsockname()[1]
    serve_until_input_closes(lambda: _serve(listener, size), port=port)


if __name__ == "__main__":
    main()
