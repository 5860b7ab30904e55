"""rpyc's frames over one socket, with bulk data beside the message instead of inside it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from jaxd_protocol.wire.connection import BulkChannel, BulkConnection, Value
from jaxd_protocol.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame
from jaxd_protocol.wire.stream import INTERRUPTIBLE_S, BulkStream, tune_socket

if TYPE_CHECKING:
    from jaxd_protocol.wire.tls_socket import TlsSocket

__all__ = [
    "DEFAULT_MAX_FRAME_BYTES",
    "INTERRUPTIBLE_S",
    "BulkChannel",
    "BulkConnection",
    "BulkStream",
    "Frame",
    "Value",
    "stream_over",
    "tune_socket",
]


def stream_over(line: socket.socket | TlsSocket) -> BulkStream:
    """A stream for calls over a connection that is past its handshakes: tuned, without timeout."""
    if isinstance(line, socket.socket):
        tune_socket(line)
        return BulkStream(line)
    from jaxd_protocol.wire.tls_stream import TlsStream  # most connections need no TLS

    line.settimeout(None)
    tune_socket(line.raw)
    return TlsStream(line)
