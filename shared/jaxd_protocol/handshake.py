"""Who are you, and can we exchange code? Settled before a single byte is unpickled.

Each message is a length and a JSON object of at most 4 KiB. The client speaks first; its first
four bytes cannot begin a frame of rpyc, so that a server can tell our clients from stock ones.

    client  JAXD !H {protocol, python, magic, versions, session, nonce}
    server       !H {protocol, python, magic, versions, nonce, auth: none | token}  or {error}
    client       !H {proof}                                       with auth: token
    server       !H {proof, session, slots, …}                    or {error}

A proof is an HMAC, under the token, of a role and of everything said before: neither end can
replay the other's, and nothing of the conversation can be altered on the way. The client proves
first; a server without the token learns nothing that would let it answer.

Nobody says a name. A server with several accounts holds the proof against the token of each, so
that a stranger learns nothing of which there are, and whoever listens does not see who comes.

Python's minor version and bytecode magic must be equal: code travels as bytecode, and the wrong
one does not raise, it ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    ConfigurationError,
    JaxdError,
    NoServer,
    ProtocolError,
    VersionMismatch,
)
from jaxd_protocol.peers import Peer, check_versions, this_end

if TYPE_CHECKING:
    from jaxd_protocol.accounts import Account

__all__ = [
    "MAGIC",
    "Guest",
    "Line",
    "Transcript",
    "finish_greeting",
    "greet_client",
    "greet_server",
    "receive_message",
    "refuse",
    "send_message",
    "server_proof",
]

MAGIC: Final = b"JAXD"
"""As the length of an rpyc frame these bytes would announce 1.2 GB, above any body limit."""

_LENGTH: Final = struct.Struct("!H")
_MAX_MESSAGE: Final = 4096
_MAX_RETRY_S: Final = 3600.0

Message = dict[str, Any]


class Line(Protocol):
    """What a handshake is spoken over: a connected socket, with TLS or without."""

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """Up to so many bytes; empty at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Sends all of them."""


class Transcript:
    """Everything that was said in one handshake, so that a proof can cover it."""

    def __init__(self) -> None:
        self._said = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Appends one message as it stood on the wire."""
        self._said.update(_LENGTH.pack(len(data)) + data)

    def proof(self, token: str, role: str) -> str:
        """The hex HMAC-SHA256 by which `role` (`client` or `server`) proves the token."""
        import hmac  # a Unix socket needs no token, and its client starts faster without this

        said = role.encode() + b"\0" + self._said.digest()
        return hmac.new(token.encode(), said, "sha256").hexdigest()


def _same(expected: str, proof: object) -> bool:
    """Whether a proof is the expected one, compared in constant time."""
    import hmac

    return hmac.compare_digest(expected.encode(), str(proof).encode(errors="replace"))


def _fresh_nonce() -> str:
    """32 random hex digits: no two handshakes are alike, so no proof can be replayed."""
    return os.urandom(16).hex()


def send_message(sock: Line, message: Message, transcript: Transcript, before: bytes = b"") -> None:
    """Sends one message and adds it to the transcript; in one piece, with what goes `before` it.

    Of two pieces TCP would keep the second back until the first has arrived.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    transcript.add(data)
    sock.sendall(before + _LENGTH.pack(len(data)) + data)


def receive_message(sock: Line, transcript: Transcript) -> Message:
    """Receives one message and adds it to the transcript.

    Raises:
        EOFError: when the peer went away.
        ProtocolError: when it sent something else.
    """
    (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size))
    if not 0 < length <= _MAX_MESSAGE:
        raise ProtocolError(f"a greeting of {length} bytes is not one of jaxd's.")
    data = _receive(sock, length)
    transcript.add(data)
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the peer's greeting is not JSON.") from error
    if not isinstance(message, dict):
        raise ProtocolError("the peer's greeting is not an object.")
    return message


def _receive(sock: Line, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError("the peer closed the connection during the handshake")
        data += part
    return data


def greet_server(
    sock: Line,
    versions: Mapping[str, str],
    token: str | None,
    session: str | None,
    device: int | None = None,
) -> Message:
    """The client's side: returns the server's last message (`peer` added as a `Peer`).

    Args:
        sock: connected, with a timeout that bounds each step.
        versions: package versions to report.
        token: what both ends must prove to hold; None takes a server that asks for nothing.
        session: the session to resume, or None for a new one.
        device: the index of the one that its calls are to run on; None: the server chooses.

    Raises:
        ConfigurationError: the server has no such device.
        AuthenticationFailed: wrong, missing or unprovable token; user not admitted.
        VersionMismatch: the ends cannot exchange code.
        NoServer: the server refused for another reason, or is no jaxd server.
        ProtocolError: it sent something that is not a greeting.
    """
    said = Transcript()
    me = this_end(versions)
    wanted = {} if device is None else {"device": device}
    hello = {**me.to_message(), "session": session, "nonce": _fresh_nonce(), **wanted}
    send_message(sock, hello, said, before=MAGIC)
    welcome = _checked(receive_message(sock, said))
    server = Peer.from_message(welcome)
    check_versions(me, server)
    if welcome.get("auth") == "token":
        if token is None:
            raise AuthenticationFailed(
                "the server asks for a token. Set JAXD_TOKEN or JAXD_TOKEN_FILE to the one it "
                "was started with (see `jaxd token`)."
            )
        send_message(sock, {"proof": said.proof(token, "client")}, said)
        expected = said.proof(token, "server")
        welcome = _checked(receive_message(sock, said))
        if not _same(expected, welcome.get("proof")):
            raise AuthenticationFailed(
                "the server could not prove that it holds the token: it may be an impostor. "
                "Nothing was sent. Check the address."
            )
    elif token is not None:
        raise AuthenticationFailed(
            "the server did not ask for the token: it may be an impostor. Nothing was sent. Check "
            "the address; for a server that is open on purpose, unset JAXD_TOKEN and "
            "JAXD_TOKEN_FILE or move the token file away."
        )
    return {**welcome, "peer": server}


def _checked(message: Message) -> Message:
    error = message.get("error")
    if error is None:
        return message
    text = str(message.get("text", "the server refused."))
    if error == Busy.__name__:
        raise Busy(text, _seconds(message.get("retry_after_s")))
    known = (AuthenticationFailed, ConfigurationError, VersionMismatch, ProtocolError)
    kinds: dict[str, type[JaxdError]] = {kind.__name__: kind for kind in known}
    raise kinds.get(str(error), NoServer)(text)


def _seconds(said: object) -> float:
    is_number = isinstance(said, int | float) and 0 <= said <= _MAX_RETRY_S
    return float(said) if is_number else 1.0  # type: ignore[arg-type]


class Guest(NamedTuple):
    """A client that passed the handshake.

    Attributes:
        peer: what it said of itself.
        session: the session that it wants to resume, or None.
        principal: who it is allowed to be.
        device: the index of the one that it wants its calls to run on, or None.
        account: whose token it has proved; None where none was asked for.
    """

    peer: Peer
    session: str | None
    principal: str
    device: int | None = None
    account: Account | None = None


def greet_client(
    sock: Line, versions: Mapping[str, str], accounts: Collection[Account], principal: str
) -> tuple[Guest, Transcript]:
    """The server's side, after `MAGIC` was read; `finish_greeting` ends it.

    Args:
        sock: accepted, with a timeout that bounds each step.
        versions: package versions to report.
        accounts: one of these the client must prove to be; none where the socket is the proof.
        principal: who the client is when no token is asked for.

    Raises:
        AuthenticationFailed, VersionMismatch, ProtocolError, EOFError: the client was told why,
            where that is safe, and is to be dropped.
    """
    said = Transcript()
    hello = receive_message(sock, said)
    client = Peer.from_message(hello)
    me = this_end(versions)
    try:
        check_versions(client, me)
    except VersionMismatch as error:
        send_message(sock, {"error": "VersionMismatch", "text": str(error)}, said)
        raise
    session = hello.get("session")
    device = hello.get("device")
    guest = Guest(
        client,
        session if isinstance(session, str) else None,
        principal,
        device if type(device) is int else None,
    )
    if not accounts:
        return guest, said
    welcome = {**me.to_message(), "auth": "token", "nonce": _fresh_nonce()}
    send_message(sock, welcome, said)
    expected = [(said.proof(account.token, "client"), account) for account in accounts]
    proof = receive_message(sock, said).get("proof")
    proved = [account for expected, account in expected if _same(expected, proof)]  # against all
    if not proved:
        text = (
            "wrong token. Use the one that the server was started with, or that was made for you "
            "there and not taken away since (see `jaxd token`)."
        )
        send_message(sock, {"error": "AuthenticationFailed", "text": text}, said)
        raise AuthenticationFailed(text)
    return guest._replace(principal=proved[0].principal, account=proved[0]), said


def server_proof(account: Account | None, said: Transcript) -> str | None:
    """What the server's last message proves, once the client's proof was read; None: nothing."""
    return None if account is None else said.proof(account.token, "server")


def finish_greeting(
    sock: Line, versions: Mapping[str, str], proof: str | None, welcome: Message
) -> None:
    """Sends the server's last message: its proof where a token was asked for, and `welcome`."""
    proved = {} if proof is None else {"proof": proof}
    send_message(sock, {**this_end(versions).to_message(), **proved, **welcome}, Transcript())


def refuse(sock: Line, error: Exception) -> None:
    """Tells a client, in place of a welcome, why it is dropped."""
    message: Message = {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, Busy):
        message["retry_after_s"] = round(error.retry_after_s, 3)
    send_message(sock, message, Transcript())
