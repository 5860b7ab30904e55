"""Passes the connection of an authenticated client from the gateway to its worker.

A connection in plain text is passed as a descriptor, with the result of its handshake. One with TLS
cannot be passed, because its keys are in the memory of the gateway: there the connection between
gateway and worker stays open, and the gateway relays the bytes.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.network.handshake import ClientIdentity, Peer, peer_uid
from jaxd_server.auth.authenticator import GREETING_S, AuthenticatedPeer

_LENGTH: Final = struct.Struct("!I")
_MAX_BYTES: Final = 1 << 16


def hand_over(path: str, admitted: AuthenticatedPeer) -> socket.socket:
    """Hands a client over to the worker that listens at a path; returns the connection to it.

    If the client's connection is a plain socket, it is passed as well, and the caller only has to
    close both. Otherwise the returned connection carries the bytes of the client.

    Raises:
        OSError: when no worker listens there, or its backlog is full.
    """
    data = json.dumps(_message(admitted)).encode()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(GREETING_S)  # the worker may not answer
    with _closed_on_error(line):
        line.connect(path)
        parts = [_LENGTH.pack(len(data)), data]
        if isinstance(admitted.stream, socket.socket):
            socket.send_fds(line, parts[:1], [admitted.stream.fileno()])
            line.sendall(parts[1])
        else:
            line.sendall(b"".join(parts))
    return line


class HandoverReceiver:
    """Receives clients that the gateway has authenticated; the authenticator of a worker behind it.

    Args:
        principal: the owner of this worker; clients of others are refused.
    """

    def __init__(self, principal: str) -> None:
        self._principal = principal

    def admit(self, sock: socket.socket) -> AuthenticatedPeer:
        """The client that a gateway hands over.

        Raises:
            ProtocolError: when it is another principal's, or the peer is no gateway.
            EOFError, OSError: when the gateway has closed the connection.
        """
        if peer_uid(sock) not in (None, 0, os.getuid()):
            raise ProtocolError("only the server's own gateway hands over clients.")
        sock.settimeout(GREETING_S)
        line, message = _receive(sock)
        with _closed_on_error(line):
            return self._checked(line, message)

    def _checked(self, line: socket.socket, message: dict[str, Any]) -> AuthenticatedPeer:
        admitted = _admitted(line, message)
        if admitted.principal != self._principal:
            raise ProtocolError(f"this worker serves no clients of {admitted.principal}.")
        # a stock client sends nothing before its first request
        line.settimeout(None if admitted.client_identity is None else GREETING_S)
        return admitted


def _message(admitted: AuthenticatedPeer) -> dict[str, Any]:
    client_identity = admitted.client_identity
    described = (
        None
        if client_identity is None
        else {
            "peer": client_identity.peer.to_message(),
            "session": client_identity.session,
            "device": client_identity.device,
            "pid": client_identity.pid,
        }
    )
    return {"principal": admitted.principal, "proof": admitted.proof, "guest": described}


def _admitted(line: socket.socket, message: dict[str, Any]) -> AuthenticatedPeer:
    principal, described = message["principal"], message["guest"]
    client_identity = None
    if described is not None:
        peer = Peer.from_message(described["peer"])
        session, device, pid = (described[name] for name in ("session", "device", "pid"))
        client_identity = ClientIdentity(peer, session, principal, device, pid=pid)
    return AuthenticatedPeer(line, principal, client_identity, proof=message["proof"])


def _receive(sock: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
    """The client's socket and its description; reads no further bytes."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, 1)
    line = socket.socket(fileno=descriptors[0]) if descriptors else sock
    with _closed_on_error(line):
        message = _message_on(sock, head)
    if line is not sock:
        sock.close()  # the descriptor replaces it
    return line, message


@contextmanager
def _closed_on_error(line: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        line.close()
        raise


def _message_on(sock: socket.socket, head: bytes) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(head + _exactly(sock, _LENGTH.size - len(head)))
    if length > _MAX_BYTES:
        raise ProtocolError(f"a gateway sends no message of {length} bytes.")
    message: dict[str, Any] = json.loads(_exactly(sock, length))
    return message


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count, socket.MSG_WAITALL) if count else b""
    if len(data) < count:
        raise EOFError("the gateway closed the connection")
    return data
