from __future__ import annotations

import socket

from jaxd_protocol.wire import BulkStream, stream_over
from jaxd_protocol.wire.tls_stream import TlsStream
from tests.certificates import tls_pair


def test_the_kind_of_a_stream_follows_from_the_connection() -> None:
    """Both wait for ever."""
    plain, peer = socket.socketpair()
    tls, tls_peer = tls_pair(*socket.socketpair())
    with peer, tls_peer.raw:
        streams = [stream_over(plain), stream_over(tls)]
        assert [type(stream) for stream in streams] == [BulkStream, TlsStream]
        assert [stream.sock.gettimeout() for stream in streams] == [None, None]
        for stream in streams:
            stream.close()
