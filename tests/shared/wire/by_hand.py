"""Frames written from the description of the protocol alone, and sockets to send them over."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxd_protocol.wire import BulkStream

Sent = tuple[bytes, tuple[bytes, ...]]
"""A body and the buffers beside it."""


def frame_bytes(body: bytes, buffers: Sequence[bytes] = (), *, compressed: bool = False) -> bytes:
    """One frame as it stands on the wire."""
    flags = 2 if buffers else int(compressed)
    data = zlib.compress(body, 1) if compressed else body
    frame = struct.pack("!LB", len(data), flags) + data + b"\n"
    if buffers:
        frame += struct.pack(f"!L{len(buffers)}Q", len(buffers), *map(len, buffers))
    return frame + b"".join(buffers)


@contextmanager
def streams() -> Iterator[tuple[BulkStream, BulkStream]]:
    """Two connected streams; the first belongs to the test."""
    ours, theirs = map(BulkStream, socket.socketpair())
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


@contextmanager
def arriving(data: bytes) -> Iterator[BulkStream]:
    """A stream on which exactly these bytes arrive, and then the end."""
    with streams() as (ours, theirs):

        def send() -> None:
            theirs.sock.sendall(data)
            theirs.sock.shutdown(socket.SHUT_WR)

        if len(data) <= 1 << 14:  # fits into any socket's buffer
            send()
            yield ours
            return
        sender = threading.Thread(target=send)
        sender.start()
        yield ours
        sender.join()
