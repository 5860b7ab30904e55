"""rpyc's frames over one socket, with bulk data beside the message instead of inside it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from jaxd_protocol.wire.connection import BulkChannel as BulkChannel
from jaxd_protocol.wire.connection import BulkConnection as BulkConnection
from jaxd_protocol.wire.connection import Value as Value
from jaxd_protocol.wire.frames import Frame as Frame
from jaxd_protocol.wire.stream import INTERRUPTIBLE_S as INTERRUPTIBLE_S
from jaxd_protocol.wire.stream import BulkStream as BulkStream
from jaxd_protocol.wire.stream import tune_socket as tune_socket

if TYPE_CHECKING:
    from jaxd_protocol.wire.tls_socket import TlsSocket


def stream_over(line: socket.socket | TlsSocket) -> BulkStream:
    """A stream for calls over a connection after its handshakes: tuned, without timeout."""
    if isinstance(line, socket.socket):
        tune_socket(line)
        return BulkStream(line)
    from jaxd_protocol.wire.tls_socket import TlsStream  # most connections need no TLS

    line.settimeout(None)
    tune_socket(line.raw)
    return TlsStream(line)
