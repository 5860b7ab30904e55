"""The sending end of a plain socket: `raw_socket unix PATH BYTES` or `… tcp PORT BYTES`."""

from __future__ import annotations

import socket
import sys

import numpy as np

from benchmarks.answering import answer_requests, measure_median


def main() -> None:
    """Measures until the input closes."""
    kind, where, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    connection = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    if kind == "unix":
        connection.connect(where)
    else:
        connection.connect(("127.0.0.1", int(where)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = np.ones(size, np.uint8).data

    def send_and_wait() -> None:
        connection.sendall(payload)
        connection.recv(1)

    answer_requests({"large": measure_median(send_and_wait)})


if __name__ == "__main__":
    main()
