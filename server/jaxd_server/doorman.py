"""Who may come in: settled on the plain socket, before anything that was sent is unpickled."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import AuthenticationFailed, ProtocolError
from jaxd_protocol.handshake import MAGIC, Guest, Transcript, greet_client, refuse

__all__ = ["GREETING_S", "Admitted", "Doorman", "peer_uid"]

GREETING_S = 10.0
"""Seconds that each step of a handshake may take."""

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that was let in.

    Attributes:
        principal: who it is allowed to be.
        guest: what our own client said of itself; None for a stock rpyc client.
        said: the handshake so far, which the welcome completes.
        token: what both ends proved to hold, if anything.
    """

    principal: str
    guest: Guest | None = None
    said: Transcript | None = None
    token: str | None = None


class Doorman:
    """Admits or refuses the peers of one listener.

    Args:
        address: what the listener listens on.
        token: what clients over TCP must prove to hold; None where none is asked for.
        uid: the user that may connect to a Unix socket.
        stock_loopback: whether stock rpyc clients and ours may come without a token over
            loopback TCP. Over a Unix socket they always may: the socket itself is the proof.
        versions: package versions to tell.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        uid: int,
        stock_loopback: bool,
        versions: Mapping[str, str],
    ) -> None:
        self._unix = address.kind == "unix"
        self._token = None if self._unix else token
        self._uid = uid
        self._open = self._unix or (stock_loopback and address.is_loopback)
        self._versions = versions

    def admit(self, sock: socket.socket) -> Admitted:
        """Lets one peer in.

        Raises:
            AuthenticationFailed: wrong user, wrong or missing token.
            VersionMismatch: our own client, but of another Python or protocol.
            ProtocolError: something that is no client at all.
            EOFError, OSError: the peer left or was too slow.
        """
        principal = self._principal_of(sock)
        sock.settimeout(None if self._open else GREETING_S)
        first = self._peek(sock)
        sock.settimeout(GREETING_S)
        if first == MAGIC:
            sock.recv(len(MAGIC), socket.MSG_WAITALL)
            token = None if self._open and self._token is None else self._required_token(sock)
            guest, said = greet_client(sock, self._versions, token, principal)
            return Admitted(guest.principal, guest, said, token)
        if not self._open:
            raise ProtocolError(
                "the peer does not speak jaxd's protocol; a stock rpyc client may connect to a "
                "Unix socket, or to loopback TCP under --allow-unauthenticated-loopback"
            )
        return Admitted(principal)

    def _required_token(self, sock: socket.socket) -> str:
        if self._token is None:
            text = "the server has no token and takes no clients over TCP."
            refuse(sock, AuthenticationFailed, text)
            raise AuthenticationFailed(text)
        return self._token

    def _principal_of(self, sock: socket.socket) -> str:
        if not self._unix:
            return f"anonymous@{sock.getpeername()[0]}"
        uid = peer_uid(sock)
        if uid not in (None, self._uid, 0):
            raise AuthenticationFailed(f"user {uid} may not use the server of user {self._uid}")
        return f"uid:{self._uid if uid is None else uid}"

    def _peek(self, sock: socket.socket) -> bytes:
        first = b""
        while len(first) < len(MAGIC):
            more = sock.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL)
            if len(more) <= len(first):
                raise EOFError("the peer left before it said who it is")
            first = more
            if not MAGIC.startswith(first):
                break
        return first


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a Unix socket, where the system tells (Linux)."""
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return int(uid)
