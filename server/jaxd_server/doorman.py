"""Who may come in: settled on the plain socket, before anything that was sent is unpickled."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import AuthenticationFailed, ProtocolError
from jaxd_protocol.handshake import (
    MAGIC,
    Guest,
    Line,
    Transcript,
    greet_client,
    receive_message,
    refuse,
)
from jaxd_protocol.wire.tls_socket import TlsSocket

__all__ = ["GREETING_S", "Admitted", "Doorman", "peer_uid"]

GREETING_S = 10.0
"""Seconds that a whole handshake may take."""

MAX_STRANGERS = 64
"""Peers that may be shaking hands at once on a listener that asks for a token."""

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that was let in.

    Attributes:
        line: what to speak with it over: the socket, or TLS on it.
        principal: who it is allowed to be.
        guest: what our own client said of itself; None for a stock rpyc client.
        said: the handshake so far, which the welcome completes.
        token: what both ends proved to hold, if anything.
    """

    line: socket.socket | TlsSocket
    principal: str
    guest: Guest | None = None
    said: Transcript | None = None
    token: str | None = None


class Doorman:
    """Admits or refuses the peers of one listener.

    Args:
        address: what the listener listens on.
        token: what clients over TCP must prove to hold; None where none is asked for.
        uid: the user that may connect to a Unix socket: the server's own.
        stock_loopback: whether stock rpyc clients and ours may come without a token over
            loopback TCP. Over a Unix socket they always may: the socket itself is the proof.
        versions: package versions to tell.
        guests: other users that may.
        tls: with which certificate clients are accepted; None: without TLS.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        uid: int,
        stock_loopback: bool,
        versions: Mapping[str, str],
        *,
        guests: Collection[int] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._unix = address.kind == "unix"
        self._token = None if self._unix else token
        self._uid = uid
        self._guests = frozenset(guests)
        self._tls = tls
        plain_loopback = address.kind == "tcp" and address.is_loopback
        self._open = self._unix or (stock_loopback and plain_loopback)
        self._versions = versions
        self._room = threading.Semaphore(MAX_STRANGERS)

    def admit(self, sock: socket.socket) -> Admitted:
        """Lets one peer in.

        Raises:
            AuthenticationFailed: wrong user, wrong or missing token.
            VersionMismatch: our own client, but of another Python or protocol.
            ProtocolError: something that is no client at all, or one too many at a time.
            EOFError, OSError: the peer left or was too slow.
        """
        principal, wrong_user = self._principal_of(sock)
        if self._open and wrong_user is None:
            sock.settimeout(None)  # a stock client speaks when it has something to ask
            first = self._peek(sock)
            return self._greet(sock, _Hurried(sock), first, principal)
        with self._room_for_one():
            hurried = _Hurried(sock)
            first = self._peek(hurried)
            if wrong_user is not None:
                raise _refused(hurried, wrong_user, is_ours=first == MAGIC)
            if self._tls is not None:
                return self._greet_over_tls(sock, hurried, self._tls, first, principal)
            return self._greet(sock, hurried, first, principal)

    @contextmanager
    def _room_for_one(self) -> Iterator[None]:
        if not self._room.acquire(blocking=False):
            raise ProtocolError(f"{MAX_STRANGERS} others are shaking hands. Try again later.")
        try:
            yield
        finally:
            self._room.release()

    def _greet_over_tls(
        self,
        sock: socket.socket,
        hurried: _Hurried,
        context: ssl.SSLContext,
        first: bytes,
        principal: str,
    ) -> Admitted:
        if first == MAGIC:
            text = "this port speaks TLS. Use the tls:// address that the server printed."
            raise _refused(hurried, text, is_ours=True)
        self._required_token(hurried)
        line = TlsSocket(sock, context, server_side=True)
        line.settimeout(hurried.left_s())
        line.do_handshake()
        first = line.recv(len(MAGIC), socket.MSG_WAITALL)
        if first != MAGIC:
            raise ProtocolError("the peer speaks TLS, but not jaxd's protocol")
        return self._greet_ours(line, _Hurried(line, hurried.left_s()), principal)

    def _greet(
        self, sock: socket.socket, hurried: _Hurried, first: bytes, principal: str
    ) -> Admitted:
        if first == MAGIC:
            if not self._open:
                self._required_token(hurried)
            hurried.recv(len(MAGIC), socket.MSG_WAITALL)
            return self._greet_ours(sock, hurried, principal)
        if not self._open:
            raise ProtocolError(
                "the peer does not speak jaxd's protocol; a stock rpyc client may connect to a "
                "Unix socket, or to loopback TCP under --allow-unauthenticated-loopback"
            )
        return Admitted(sock, principal)

    def _greet_ours(
        self, line: socket.socket | TlsSocket, hurried: _Hurried, principal: str
    ) -> Admitted:
        guest, said = greet_client(hurried, self._versions, self._token, principal)
        return Admitted(line, guest.principal, guest, said, self._token)

    def _required_token(self, sock: Line) -> None:
        if self._token is None:
            text = "the server has no token and takes no clients over TCP."
            raise _refused(sock, text, is_ours=True)

    def _principal_of(self, sock: socket.socket) -> tuple[str, str | None]:
        """Who the peer is without a token, and why it may not be here, if so."""
        if not self._unix:
            return f"anonymous@{sock.getpeername()[0]}", None
        uid = peer_uid(sock)
        if uid not in (None, self._uid, 0) and uid not in self._guests:
            return f"uid:{uid}", (
                f"user {uid} may not use the server of user {self._uid}. Start one of your own "
                f"(`jaxd start`), or have that one started with --allow-uid {uid}."
            )
        return f"uid:{self._uid if uid is None else uid}", None

    def _peek(self, sock: Line) -> bytes:
        first = b""
        while len(first) < len(MAGIC):
            more = sock.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL)
            if len(more) <= len(first):
                raise EOFError("the peer left before it said who it is")
            first = more
            if not MAGIC.startswith(first):
                break
        return first


def _refused(sock: Line, text: str, *, is_ours: bool) -> AuthenticationFailed:
    """Tells one of our own clients why it may not come in, and returns that as an error."""
    if is_ours:
        with suppress(ProtocolError, EOFError, OSError):
            sock.recv(len(MAGIC), socket.MSG_WAITALL)
            receive_message(sock, Transcript())  # closing over unread bytes might drop the answer
            refuse(sock, AuthenticationFailed, text)
    return AuthenticationFailed(text)


class _Hurried:
    """A socket on which everything together has to be over at one moment."""

    def __init__(self, sock: socket.socket | TlsSocket, seconds: float | None = None) -> None:
        self._sock = sock
        self._until = time.monotonic() + (GREETING_S if seconds is None else seconds)

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        self._sock.settimeout(self.left_s())
        return self._sock.recv(count, flags)

    def sendall(self, data: bytes, /) -> None:
        self._sock.settimeout(self.left_s())
        self._sock.sendall(data)

    def left_s(self) -> float:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake took too long")
        return left_s


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a Unix socket, where the system tells (Linux)."""
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return int(uid)
