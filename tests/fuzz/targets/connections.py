"""What arrives on a connection, before its content is read."""

from __future__ import annotations

import io
import json
import socket
import struct
import zlib
from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import Mock

from jaxd_protocol.base.buffers import deflate, inflate
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.network import handshake
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.certificates import client_context, server_context
from jaxd_protocol.network.handshake import local_peer
from jaxd_protocol.wire.frames import Frame, FrameReader
from jaxd_protocol.wire.tls_socket import TlsSocket
from tests.certificates import authority
from tests.fuzz.target import Target


class ScriptedStream:
    """A byte stream with prescribed input."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """What is left."""
        return self._stream.read(count)

    def sendall(self, data: bytes, /) -> None:
        """Nobody listens."""


def _encoded_messages(*said: dict[str, Any]) -> bytes:
    texts = [json.dumps(each).encode() for each in said]
    return b"".join(struct.pack("!H", len(text)) + text for text in texts)


CLIENT_FIELDS = {"versions": {"jax": "1"}, "session": "s", "device": 1}
CHANNEL = {"channel": handshake.UNIX.to_message()}
HELLO = {**local_peer({"jax": "1"}).to_message(), **CHANNEL, **CLIENT_FIELDS, "nonce": "0" * 32}
ACCOUNTS = [Account.named("alice", "a" * 43), Account.unnamed("b" * 43)]


def _client_handshake(data: bytes) -> None:
    for accounts in ((), ACCOUNTS):
        handshake.handshake_with_client(ScriptedStream(data), handshake.UNIX, accounts, "uid:1")


def _server_handshake(data: bytes) -> None:
    for token in (None, "a" * 43):
        with suppress(JaxdError):
            handshake.handshake_with_server(ScriptedStream(data), handshake.UNIX, {}, token, None)
    handshake.handshake_with_server(ScriptedStream(data), handshake.UNIX, {}, "b" * 43, "session")


def _frames(data: bytes) -> None:
    for inflates in (False, True):
        stream = io.BytesIO(data)

        def receive(views: list[memoryview], counts: list[int], stream: Any = stream) -> None:
            count = stream.readinto(views[0])
            if not count:
                raise EOFError
            counts.append(count)

        reader = FrameReader(receive, 1 << 20, inflates=inflates)
        with suppress(JaxdError, EOFError):
            while True:
                reader.peek()
                reader.advance()


def frame(body: bytes, flags: int = 0, beside: bytes = b"") -> bytes:
    """One message of rpyc's, with what comes beside it."""
    return struct.pack("!LB", len(body), flags) + body + b"\n" + beside


@cache
def _connection() -> Any:
    from jaxd_protocol.wire.connection import BulkConnection

    connection: Any = BulkConnection.__new__(BulkConnection)
    connection._channel = Mock()
    return connection


def _message(data: bytes) -> None:
    _connection().read_message(Frame(data))


def _wire_messages() -> list[bytes]:
    from jaxd_protocol.wire.connection import encode_reply, encode_request
    from tests.shared.wire.test_connection import FORGED

    good = [
        encode_request(5, "call", (b"key", 3, "text", (1, 2.5, None, True))),
        encode_request(500, "event", (1, "kind", "{}")),
        encode_reply(500, (0, b"skeleton", slice(1, 2), frozenset([1]), 1j)),
    ]
    return good + [bytes(forged) for forged in FORGED.values()]


def _inflated(data: bytes) -> None:
    nbytes = int.from_bytes(data[:2], "big")
    assert len(inflate(memoryview(data[2:]), nbytes)) == nbytes


def _tls(data: bytes) -> None:
    """What comes before the handshake of jaxd on such an address."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        line = TlsSocket(server, _tls_context(), server_side=True)
        line.settimeout(1.0)
        line.do_handshake()
        line.recv(4)


@cache
def _tls_context() -> Any:
    return server_context(*authority())


def _tls_hello() -> bytes:
    """The first bytes of a client."""
    client, server = socket.socketpair()
    with client, server:
        line = TlsSocket(client, client_context(pinned=True), server_name="h")
        line.settimeout(0.0)
        with suppress(OSError, EOFError):
            line.do_handshake()
        return server.recv(1 << 16)


CONNECTIONS: dict[str, Target] = {
    "greeting of a client": Target(
        _client_handshake,
        [
            _encoded_messages(HELLO, CLIENT_FIELDS, {"proof": "0" * 64}),
            _encoded_messages({**HELLO, "protocol": 99}),
            b"\0\2{}",
        ],
        (JaxdError, EOFError),
    ),
    "greeting of a server": Target(
        _server_handshake,
        [
            _encoded_messages({**HELLO, "auth": "token"}, {"proof": "0" * 64, "slots": 1}),
            _encoded_messages({**HELLO, "auth": "none"}),
            _encoded_messages({"error": "Busy", "text": "later", "retry_after_s": 3}),
        ],
        (JaxdError, EOFError),
    ),
    "frames": Target(
        _frames,
        [
            frame(b"body"),
            frame(zlib.compress(b"x" * 4000), 1),
            frame(b"body", 2, struct.pack("!LQQ", 2, 3, 4) + b"abcdefg") + frame(b""),
        ],
    ),
    "message": Target(_message, _wire_messages(), (JaxdError, EOFError)),
    "compressed data": Target(_inflated, [b"\x0f\xa0" + deflate(memoryview(b"x" * 4000)), b"\0\0"]),
    "tls": Target(_tls, [_tls_hello()], (JaxdError, OSError, EOFError)),
}
