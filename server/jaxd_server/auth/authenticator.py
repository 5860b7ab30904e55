"""Authenticates peers on the plain socket, before anything that they sent is unpickled."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from jaxd_protocol.errors import AuthenticationFailed, Busy, JaxdError, ProtocolError
from jaxd_protocol.network import tcp_owners
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import (
    MAGIC,
    UNIX,
    ByteStream,
    ChannelBinding,
    ClientIdentity,
    Transcript,
    handshake_with_client,
    peer_uid,
    receive_message,
    refuse_client,
)
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.handshake_slots import FIRST_BYTES_S, HandshakeSlots, UnauthenticatedPeer
from jaxd_server.auth.tls_setup import TlsConfig, tls_config_of
from jaxd_server.config.options import ServerOptions
from jaxd_server.runtime.limits import RateLimiter, rate_limit_key

GREETING_S = 10.0
"""Seconds that a whole handshake may take."""


@dataclass(frozen=True, slots=True)
class AuthenticatedPeer:
    """A peer that was authenticated.

    Attributes:
        stream: the connection: the socket, or TLS on it.
        principal: the authenticated identity.
        client_identity: how a jaxd client has identified itself; None for a stock rpyc client.
        account: whose token the peer has proved to hold, if any.
        proof: the server's proof that it holds the token as well, for the welcome.
    """

    stream: socket.socket | TlsSocket
    principal: str
    client_identity: ClientIdentity | None = None
    account: Account | None = None
    proof: str | None = None


class _Claim(NamedTuple):
    """What is known of a peer before it proves to hold a token.

    Attributes:
        principal: its identity without a token.
        key: what handshakes and wrong tokens are counted by.
    """

    principal: str
    key: str


def wrong_token_limiter() -> RateLimiter:
    """Limits wrong tokens: twenty from one address, and then one in three seconds.

    A token that `jaxd token` has made cannot be guessed anyway; one that a person has made up
    might be.
    """
    return RateLimiter(20, 1 / 3)


class Authenticator:
    """Authenticates the peers of one listener.

    Args:
        address: what the listener listens on.
        accounts: returns the accounts that are valid now over TCP; called for each client.
        uid: the user that may connect to a Unix socket: the server's own.
        stock_loopback: whether clients, stock rpyc ones included, need no token over loopback
            TCP. Over a Unix socket none needs one: the permissions of the socket are the proof.
        allowed_uids: other users that may connect; none where the system does not identify peers.
        tls: for addresses with TLS: certificate and key.
        insecure: whether clients with a token may use TCP although the connection may be
            intercepted, where their address allows it as well.
        failures: counts the wrong tokens of all listeners.

    Attributes:
        silence_s: for how long a peer that need not prove anything may say nothing; None: as long
            as it likes, for a stock client says nothing before its first request.
    """

    silence_s: float | None = None

    def __init__(
        self,
        address: Address,
        accounts: Callable[[], Collection[Account]],
        uid: int,
        stock_loopback: bool,
        *,
        allowed_uids: Collection[int] = (),
        tls: TlsConfig | None = None,
        insecure: bool = False,
        failures: RateLimiter | None = None,
    ) -> None:
        self._unix = address.kind == "unix"
        self._accounts = accounts
        self._failures = wrong_token_limiter() if failures is None else failures
        self._uid = uid
        self._allowed_uids = frozenset(allowed_uids)
        self._tls = tls if address.kind == "tls" else None
        plain_loopback = address.kind == "tcp" and address.is_loopback
        self._open = self._unix or (stock_loopback and plain_loopback)
        self._insecure = insecure or self._open
        self._handshake_slots = HandshakeSlots()

    def admit(self, sock: socket.socket) -> AuthenticatedPeer:
        """Authenticates one peer.

        Raises:
            AuthenticationFailed: wrong user, wrong or missing token.
            Busy: too many wrong tokens from this address, or too many handshakes in progress.
            VersionMismatch: a jaxd client of another Python or protocol.
            ProtocolError: the peer is no client, or the connection may be intercepted.
            EOFError, OSError: the peer disconnected or was too slow.
        """
        principal, wrong_user = self._principal_of(sock)
        claim = _Claim(principal, principal if self._unix else _rate_limit_key(sock))
        if self._open and wrong_user is None:
            sock.settimeout(self.silence_s)
            first = self._peek(sock)
            sock.settimeout(None)
            return self._greet(sock, _DeadlineSocket(sock), first, claim)
        with self._handshake_slots.acquire(sock, claim.key, tls=self._tls is not None) as stranger:
            hurried = _DeadlineSocket(sock)
            first = self._peek(_DeadlineSocket(sock, min(FIRST_BYTES_S, hurried.left_s())))
            stranger.stage = 1
            if wrong_user is not None:
                raise _refused(hurried, AuthenticationFailed(wrong_user), is_ours=first == MAGIC)
            if self._tls is not None:
                return self._greet_over_tls(stranger, hurried, self._tls, first, claim)
            stranger.stage = 2
            return self._greet(sock, hurried, first, claim)

    def _greet_over_tls(
        self,
        stranger: UnauthenticatedPeer,
        hurried: _DeadlineSocket,
        tls: TlsConfig,
        first: bytes,
        claim: _Claim,
    ) -> AuthenticatedPeer:
        if first == MAGIC:
            text = "this port speaks TLS. Use the tls:// address that the server printed."
            raise _refused(hurried, AuthenticationFailed(text), is_ours=True)
        if not self._accounts():
            raise AuthenticationFailed(_NO_TCP_CLIENTS)  # only TLS could carry the reason
        line = TlsSocket(stranger.sock, tls.context, server_side=True)
        line.settimeout(hurried.left_s())
        line.do_handshake()
        stranger.line = line
        first = line.recv(len(MAGIC), socket.MSG_WAITALL)
        if first != MAGIC:
            raise ProtocolError("the peer speaks TLS, but not jaxd's protocol")
        stranger.stage = 2
        return self._greet_jaxd_client(line, _DeadlineSocket(line, hurried.left_s()), claim)

    def _greet(
        self, sock: socket.socket, hurried: _DeadlineSocket, first: bytes, claim: _Claim
    ) -> AuthenticatedPeer:
        if first == MAGIC:
            hurried.recv(len(MAGIC), socket.MSG_WAITALL)
            return self._greet_jaxd_client(sock, hurried, claim)
        if not self._open:
            raise ProtocolError(
                "the peer does not speak jaxd's protocol; a stock rpyc client may connect to a "
                "Unix socket, or to loopback TCP under --allow-unauthenticated-loopback"
            )
        return AuthenticatedPeer(sock, claim.principal)

    def _greet_jaxd_client(
        self, line: socket.socket | TlsSocket, hurried: _DeadlineSocket, claim: _Claim
    ) -> AuthenticatedPeer:
        accounts = () if self._unix else self._accounts()
        if not (accounts or self._open):
            raise _refused_after_read(hurried, AuthenticationFailed(_NO_TCP_CLIENTS))
        wait_s = self._failures.wait_s(claim.key) if accounts else 0.0
        if wait_s:
            raise _refused_after_read(hurried, _too_many(claim.key, wait_s))
        try:
            client_identity, proof = handshake_with_client(
                hurried, self._channel(line), accounts, claim.principal
            )
        except AuthenticationFailed:
            self._failures.record(claim.key)
            raise
        account = client_identity.account
        return AuthenticatedPeer(line, client_identity.principal, client_identity, account, proof)

    def _channel(self, line: socket.socket | TlsSocket) -> ChannelBinding:
        if self._unix:
            return UNIX
        if isinstance(line, TlsSocket):
            assert self._tls is not None
            return ChannelBinding("tls", self._tls.certificate)
        return ChannelBinding("tcp", sock=line, insecure=self._insecure)

    def _principal_of(self, sock: socket.socket) -> tuple[str, str | None]:
        """The principal of the peer without a token, and why it may not connect, if so."""
        if not self._unix:
            return f"anonymous@{sock.getpeername()[0]}", None
        uid = peer_uid(sock)
        if uid is None and self._allowed_uids:
            why = "the system does not identify the peer, and not every user may connect."
            return "unknown", why
        if uid not in (None, self._uid, 0) and uid not in self._allowed_uids:
            return f"uid:{uid}", (
                f"user {uid} may not use the server of user {self._uid}. Start one of your own "
                f"(`jaxd start`), or have that one started with --allow-uid {uid}."
            )
        return f"uid:{self._uid if uid is None else uid}", None

    def _peek(self, sock: ByteStream) -> bytes:
        first = b""
        while len(first) < len(MAGIC) and MAGIC.startswith(first):
            more = sock.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL)
            if len(more) <= len(first):
                raise EOFError("the peer disconnected before it identified itself")
            first = more
        return first


_NO_TCP_CLIENTS: Final = "the server has no token and takes no clients over TCP. See `jaxd token`."


def _too_many(key: str, wait_s: float) -> Busy:
    return Busy(
        f"too many wrong tokens have come from {key}. The next one is checked in "
        f"{wait_s:.0f} s; check yours meanwhile.",
        wait_s,
    )


def _refused(sock: ByteStream, error: JaxdError, *, is_ours: bool) -> JaxdError:
    """Sends a jaxd client the reason of its refusal, and returns it."""
    if is_ours:
        with suppress(EOFError, OSError):
            sock.recv(len(MAGIC), socket.MSG_WAITALL)
            return _refused_after_read(sock, error)
    return error


def _refused_after_read(sock: ByteStream, error: JaxdError) -> JaxdError:
    """As `_refused`, for a client whose first bytes were read."""
    with suppress(ProtocolError, EOFError, OSError):
        receive_message(sock, Transcript())  # closing with unread bytes could drop the answer
        refuse_client(sock, error)
    return error


class _DeadlineSocket:
    """A socket with one deadline for all operations together."""

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


def _rate_limit_key(sock: socket.socket) -> str:
    """The key that handshakes and wrong tokens are counted by: the address, with its local user.

    So one user of this machine cannot block the loopback port for another one.
    """
    place = rate_limit_key(sock.getpeername())
    owner = tcp_owners.owner_of_peer(sock)
    return place if owner is None else f"{place} (user {owner})"


def authenticator_factory(
    options: ServerOptions,
    accounts: Accounts,
    failures: RateLimiter | None = None,
) -> Callable[[Address], Authenticator]:
    """Makes the authenticators of a server, for the addresses of its listeners.

    They share the accounts and the count of wrong tokens, so that trying one listener after the
    other gives no more attempts.

    Args:
        options: of the server.
        accounts: whose clients may connect.
        failures: counts wrong tokens; None: a new one does.

    Raises:
        ConfigurationError: when the certificate cannot be used.
    """
    return partial(
        Authenticator,
        accounts=accounts.now,
        uid=os.getuid(),
        stock_loopback=options.allow_unauthenticated_loopback,
        allowed_uids=options.allow_uids,
        tls=tls_config_of(options),
        insecure=options.insecure_plaintext,
        failures=failures or wrong_token_limiter(),
    )
