"""The handshake: authentication and versions, checked before a single byte is unpickled.

Each message is a length and a JSON object of at most 4 KiB. The client sends first; its first
four bytes cannot begin a frame of rpyc, which is how a server recognizes stock rpyc clients.

    client  JAXD !H {protocol, python, magic, channel, nonce}
    server       !H {protocol, python, magic, channel, nonce, auth: token}   or {error}
    client       !H {versions, session, device}  !H {proof}                  in one piece
    server       !H {proof, versions, session, slots, …}                     or {error}

Over a Unix socket, where the kernel reports each end's user to the other, there are no proofs: the
client sends everything in its first message, and the server answers with its last.

A proof is an HMAC, under the token, of a role and of all messages before it: neither end can
replay the other's, and no message can be altered on the way. The client proves first; a server
without the token learns nothing that would allow it to answer. Versions of packages are sent only
after a proof.

A proof covers the `ChannelBinding` as well, so that it is invalid on another connection: both ends
detect a relay that would send messages of its own after the handshake.

No name is sent. A server with several accounts compares the proof with the token of each, so that
a stranger does not learn which accounts exist, and an eavesdropper not whose connection it is.

Python's minor version and bytecode magic must be equal: code is sent as bytecode, and that of
another version does not raise, it crashes the process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import selectors
import socket
import struct
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, Protocol

from jaxd_protocol import PROTOCOL_VERSION, __version__
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    ConfigurationError,
    JaxdError,
    NoServer,
    ProtocolError,
    ServerStartFailed,
    VersionMismatch,
)

if TYPE_CHECKING:
    from jaxd_protocol.network.accounts import Account


MAGIC: Final = b"JAXD"
"""As the length of an rpyc frame these bytes would announce 1.2 GB, above any body limit."""

_IGNORE_CLOSED: Final = suppress(BrokenPipeError, ConnectionResetError)
"""Around a message to a peer that may refuse it unread: the refusal can still be received."""

_LENGTH: Final = struct.Struct("!H")
_MAX_MESSAGE: Final = 4096
_MAX_RETRY_S: Final = 3600.0
_NONCE_BYTES: Final = 16  # random: no two handshakes are alike, so no proof can be replayed

Message = dict[str, Any]

_UCRED: Final = struct.Struct("3i")


class ByteStream(Protocol):
    """The transport of a handshake: a connected socket, with TLS or without."""

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """Up to so many bytes; empty at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Sends all of them."""


class ChannelBinding(NamedTuple):
    """The connection under a handshake, as one end knows it.

    Each end describes it in a message that the proofs cover, and compares the description of the
    other end. Host, port and code are not in it: a tunnel or a published port changes them
    legitimately. What is compared of TLS is as in RFC 5929, tls-server-end-point.

    Attributes:
        kind: of the transport; an ssh:// address counts as the Unix socket at its far end.
        certificate: over TLS, the SHA-256 of the server's certificate.
        sock: over plain TCP, this end, of which the kernel reports the owner of the other one.
        insecure: whether this end accepts plain TCP also where the kernel does not report that, or
            reports another user than the other end does.
    """

    kind: Literal["unix", "tcp", "tls"]
    certificate: str = ""
    sock: socket.socket | None = None
    insecure: bool = False

    def to_message(self) -> Message:
        """The description that this end sends."""
        if self.kind == "tls":
            return {"kind": "tls", "certificate": self.certificate}
        if self.sock is None:
            return {"kind": self.kind}
        # of the socket, not of the process: which is what the kernel reports to the other end
        uid = os.fstat(self.sock.fileno()).st_uid
        return {"kind": self.kind, "uid": uid, "insecure": self.insecure}

    def mismatch(self, received: object) -> str | None:
        """Why the other end may not be on the same connection; None: it is.

        Args:
            received: the description that the other end has sent.

        Raises:
            EOFError: when it has closed the connection, so that its owner cannot be known.
        """
        theirs = received if isinstance(received, dict) else {}
        if theirs.get("kind") != self.kind:
            return (
                f"one end of the connection speaks {self.kind}, the other {theirs.get('kind')!r}: "
                "somebody passes it on and may change it. Use the address that the server printed."
            )
        if self.kind == "tls" and theirs.get("certificate") != self.certificate:
            return (
                "the client was shown another certificate than the server's: somebody ends TLS in "
                "between, and may read and change everything. Pass the port on as it is (TCP), or "
                "use ssh://."
            )
        return None if self.sock is None else self._wrong_owner(self.sock, theirs)

    def _wrong_owner(self, sock: socket.socket, theirs: Message) -> str | None:
        from jaxd_protocol.network.tcp_owners import owner_of_peer  # few connections need it

        owner = owner_of_peer(sock)
        if owner is not None and owner == theirs.get("uid"):
            return None
        if self.insecure and theirs.get("insecure") is True:
            return None
        if owner is None and _is_closed(sock):
            raise EOFError("the peer closed the connection during the handshake")
        found = "cannot be known here" if owner is None else f"is user {owner}"
        return (
            f"who owns the other end of this TCP connection {found}, and the peer says that it is "
            f"user {theirs.get('uid')!r}: somebody may pass the connection on and change it. Use "
            "tls:// or ssh://. For a tunnel or network that you trust, both ends can accept it: "
            "tcp://…?insecure=1 in the client's address, --insecure-plaintext at the server."
        )


def _is_closed(sock: socket.socket) -> bool:
    """Whether the peer has closed the connection, and there is nothing left to read."""
    with selectors.DefaultSelector() as selector:  # a socket with a timeout would wait
        selector.register(sock, selectors.EVENT_READ)
        try:
            return bool(selector.select(0)) and not sock.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True


UNIX: Final = ChannelBinding("unix")
"""Where the kernel reports each end's user to the other."""


class Transcript:
    """The digest of all messages of one handshake, which a proof covers."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Appends one message as it is on the wire."""
        self._digest.update(_LENGTH.pack(len(data)) + data)

    def proof(self, token: str, role: str) -> str:
        """The hex HMAC-SHA256 by which `role` (`client` or `server`) proves the token."""
        import hmac  # a Unix socket needs no token, and its client starts faster without this

        content = role.encode() + b"\0" + self._digest.digest()
        return hmac.new(token.encode(), content, "sha256").hexdigest()


def _same(expected: str, proof: object) -> bool:
    """Whether a proof is the expected one, compared in constant time."""
    import hmac

    return hmac.compare_digest(expected.encode(), str(proof).encode(errors="replace"))


def send_message(
    sock: ByteStream, message: Message, transcript: Transcript, before: bytes = b""
) -> None:
    """Sends one message, in one piece with the bytes `before` it, and adds it to the transcript.

    TCP would delay a second piece until the first has arrived.
    """
    sock.sendall(before + _encoded(message, transcript))


def _encoded(message: Message, transcript: Transcript) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    transcript.add(data)
    return _LENGTH.pack(len(data)) + data


def receive_message(sock: ByteStream, transcript: Transcript) -> Message:
    """Receives one message and adds it to the transcript.

    Raises:
        EOFError: when the peer closed the connection.
        ProtocolError: when it sent something else.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))
    if not 0 < length <= _MAX_MESSAGE:
        raise ProtocolError(f"a greeting of {length} bytes is not one of jaxd's.")
    data = _receive_exactly(sock, length)
    transcript.add(data)
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the peer's greeting is not JSON.") from error
    if not isinstance(message, dict):
        raise ProtocolError("the peer's greeting is not an object.")
    return message


def _receive_exactly(sock: ByteStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError("the peer closed the connection during the handshake")
        data += part
    return data


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a Unix socket; None where the system does not report it.

    Linux does: on a server the user who connected, on a client the user who listens.
    """
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return int(uid)


def peer_pid(sock: socket.socket) -> int | None:
    """The process that connected to a Unix socket; None where the system does not report it.

    It is a relay where one is in between, and 0 where it is in a namespace that is not ours.
    """
    option: Any = getattr(socket, "SO_PEERCRED", None)
    if option is None or sock.family != socket.AF_UNIX:
        return None
    pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return int(pid)


class Peer(NamedTuple):
    """One end of a connection, as it describes itself.

    Attributes:
        protocol: version of this protocol.
        python: major and minor version.
        magic: bytecode magic number in hex.
        versions: distribution name to version, for reports and warnings only; empty before the
            receiving end has proved its identity.
    """

    protocol: int
    python: tuple[int, int]
    magic: str
    versions: Mapping[str, str]

    def to_message(self) -> Message:
        """The fields as JSON values."""
        return {**self._asdict(), "python": list(self.python), "versions": dict(self.versions)}

    def without_versions(self) -> Peer:
        """The fields that a stranger may know, and needs in order to be refused with a reason."""
        return self._replace(versions={})

    @classmethod
    def from_message(cls, message: Message) -> Peer:
        """Reads what `to_message` wrote; raises `ProtocolError` for anything else."""
        try:
            major, minor = message["python"]
            versions = {str(k): str(v) for k, v in message["versions"].items()}
            return cls(
                int(message["protocol"]), (int(major), int(minor)), str(message["magic"]), versions
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ProtocolError("the peer's greeting is not one of jaxd's.") from error


def local_peer(versions: Mapping[str, str]) -> Peer:
    """The description of this process, with the given package `versions` beside jaxd's own."""
    return Peer(
        PROTOCOL_VERSION,
        (sys.version_info.major, sys.version_info.minor),
        importlib.util.MAGIC_NUMBER.hex(),
        {"jaxd": __version__, **versions},
    )


def check_versions(client: Peer, server: Peer) -> None:
    """Refuses two ends that cannot exchange code.

    Raises:
        VersionMismatch: when they differ; the text says what to start instead.
    """
    if client.protocol != server.protocol:
        raise VersionMismatch(
            f"the client speaks protocol {client.protocol}, the server {server.protocol}. "
            "Install the same jaxd on both sides."
        )
    if (client.python, client.magic) != (server.python, server.magic):
        ours, theirs = (".".join(map(str, peer.python)) for peer in (client, server))
        raise VersionMismatch(
            f"the client runs Python {ours} and the server Python {theirs}; functions travel as "
            f"bytecode, so both need the same minor version. Start a server with Python {ours} "
            f"(where jaxd[server] is installed for it: python{ours} -m jaxd.cli serve, or in "
            f"a container: docker run --publish 18861:18861 --volume jaxd:/var/lib/jaxd "
            f"jaxd:py{ours}), or run the client with Python {theirs}."
        )


def handshake_with_server(
    sock: ByteStream,
    channel: ChannelBinding,
    versions: Mapping[str, str],
    token: str | None,
    session: str | None,
    device: int | None = None,
) -> Message:
    """The client's side: returns the server's last message (`peer` added as a `Peer`).

    Args:
        sock: connected, with a timeout that bounds each step.
        channel: the connection.
        versions: package versions to report.
        token: both ends must prove to hold it; None accepts a server that requires no proof.
        session: the session to resume, or None for a new one.
        device: the index of the device that its calls run on; None: the server chooses.

    Raises:
        ConfigurationError: the server has no such device.
        AuthenticationFailed: wrong, missing or unprovable token; user not admitted; a server that
            requires no token where any process could answer; a relay in between.
        VersionMismatch: the ends cannot exchange code.
        NoServer: the server refused for another reason, or is no jaxd server.
        ProtocolError: it sent something that is not a greeting.
    """
    me = local_peer(versions)
    wanted = {} if device is None else {"device": device}
    about = {"versions": dict(me.versions), "session": session, "pid": os.getpid(), **wanted}
    may_be_open = token is None and (channel.kind == "unix" or channel.insecure)
    transcript = Transcript()
    welcome = _exchange_hellos(sock, channel, me, about if may_be_open else {}, transcript)
    if welcome.get("auth") == "token":
        welcome = _exchange_proofs(sock, channel, token, about, welcome, transcript)
    elif not may_be_open:
        _refuse_open_server(token)
    return {**welcome, "peer": Peer.from_message(welcome)}


def _exchange_hellos(
    sock: ByteStream, channel: ChannelBinding, me: Peer, about: Message, transcript: Transcript
) -> Message:
    """The server's answer to the client's first message, from a server of a usable version."""
    hello = {**me.without_versions().to_message(), "channel": channel.to_message()}
    hello |= {"nonce": os.urandom(_NONCE_BYTES).hex(), **about}
    with _IGNORE_CLOSED:  # the server may have sent a reason before it closed the connection
        send_message(sock, hello, transcript, before=MAGIC)
    welcome = _checked(receive_message(sock, transcript))
    check_versions(me, Peer.from_message(welcome))
    return welcome


def _exchange_proofs(
    sock: ByteStream,
    channel: ChannelBinding,
    token: str | None,
    about: Message,
    welcome: Message,
    transcript: Transcript,
) -> Message:
    """The server's last message, after each end has proved to the other that it holds the token."""
    if token is None:
        raise AuthenticationFailed(
            "the server asks for a token. Set JAXD_TOKEN or JAXD_TOKEN_FILE to the one it "
            "was started with (see `jaxd token`)."
        )
    mismatch = channel.mismatch(welcome.get("channel"))
    if mismatch is not None:
        raise AuthenticationFailed(mismatch)
    encoded = _encoded(about, transcript)
    with _IGNORE_CLOSED:
        proof = transcript.proof(token, "client")
        send_message(sock, {"proof": proof}, transcript, before=encoded)
    expected = transcript.proof(token, "server")
    welcome = _checked(receive_message(sock, transcript))
    if not _same(expected, welcome.get("proof")):
        raise AuthenticationFailed(
            "the server could not prove that it holds the token: it may be an impostor. "
            "Nothing was sent. Check the address."
        )
    return welcome


def _refuse_open_server(token: str | None) -> NoReturn:
    """Refuses a server that requires no proof although the client has a token or needs a proof."""
    if token is not None:
        raise AuthenticationFailed(
            "the server did not ask for the token: it may be an impostor. Nothing was sent. Check "
            "the address; for a server that is open on purpose, unset JAXD_TOKEN and "
            "JAXD_TOKEN_FILE or move the token file away."
        )
    raise AuthenticationFailed(
        "the server asks for no proof, so that it may be anybody's who took the port. Nothing "
        "was sent. Give it a token (`jaxd token`), or use its Unix socket, tls:// or ssh://; "
        "for a server that is open on purpose, say so in its address: tcp://…?insecure=1."
    )


def _checked(message: Message) -> Message:
    error = message.get("error")
    if error is None:
        return message
    text = str(message.get("text", "the server refused."))
    if error == Busy.__name__:
        retry_s: Any = message.get("retry_after_s")
        is_valid = isinstance(retry_s, int | float) and 0 <= retry_s <= _MAX_RETRY_S
        raise Busy(text, float(retry_s) if is_valid else 1.0)
    known = (
        AuthenticationFailed,
        ConfigurationError,
        VersionMismatch,
        ProtocolError,
        ServerStartFailed,
    )
    kinds: dict[str, type[JaxdError]] = {kind.__name__: kind for kind in known}
    raise kinds.get(str(error), NoServer)(text)


class ClientIdentity(NamedTuple):
    """A client that passed the handshake.

    Attributes:
        peer: its description of itself.
        session: the session that it requests to resume, or None.
        principal: whom it is authenticated as.
        device: the index of the device that it requests, or None.
        account: the account whose token it has proved; None where no proof was required.
        pid: the id that its process has where it runs, or None.
    """

    peer: Peer
    session: str | None
    principal: str
    device: int | None = None
    account: Account | None = None
    pid: int | None = None


def handshake_with_client(
    sock: ByteStream,
    channel: ChannelBinding,
    accounts: Collection[Account],
    principal: str,
) -> tuple[ClientIdentity, str | None]:
    """The server's side, after `MAGIC` was read; `finish_handshake` ends it.

    Args:
        sock: accepted, with a timeout that bounds each step.
        channel: the connection.
        accounts: the client must prove to be one of these; none where the socket is the proof.
        principal: whom the client is authenticated as where no token is required.

    Returns:
        The client, and the proof for `finish_handshake`: None where no token is required.

    Raises:
        AuthenticationFailed: wrong token.
        VersionMismatch: the ends cannot exchange code.
        ProtocolError: it sent something that is not a greeting, or there may be a relay in between.
        EOFError: it closed the connection. In all cases the reason was sent to the client, where
            that is safe, and the connection is to be closed.
    """
    transcript = Transcript()
    hello = receive_message(sock, transcript)
    client = Peer.from_message(hello)
    me = local_peer({}).without_versions()
    try:
        check_versions(client, me)
    except VersionMismatch as error:
        refuse_client(sock, error)
        raise
    if not accounts:
        return _client_identity(client, hello, principal), None
    mismatch = channel.mismatch(hello.get("channel"))
    if mismatch is not None:
        refuse_client(sock, AuthenticationFailed(mismatch))
        raise ProtocolError(mismatch)  # no token was tried
    welcome = {**me.to_message(), "auth": "token", "channel": channel.to_message()}
    send_message(sock, {**welcome, "nonce": os.urandom(_NONCE_BYTES).hex()}, transcript)
    about = receive_message(sock, transcript)
    expected = [(transcript.proof(account.token, "client"), account) for account in accounts]
    proof = receive_message(sock, transcript).get("proof")
    proved = [account for expected, account in expected if _same(expected, proof)]  # against all
    if not proved:
        wrong = AuthenticationFailed(
            "wrong token. Use the one that the server was started with, or that was made for you "
            "there, if it was not revoked (see `jaxd token`)."
        )
        refuse_client(sock, wrong)
        raise wrong
    account = proved[0]
    client = Peer.from_message({**hello, "versions": about.get("versions")})
    identity = _client_identity(client, about, account.principal, account)
    return identity, transcript.proof(account.token, "server")


def _client_identity(
    client: Peer, about: Message, principal: str, account: Account | None = None
) -> ClientIdentity:
    """A client with what it has sent about its session."""
    session, device, pid = about.get("session"), about.get("device"), about.get("pid")
    return ClientIdentity(
        client,
        session if isinstance(session, str) else None,
        principal,
        device if type(device) is int else None,
        account,
        pid if type(pid) is int else None,
    )


def finish_handshake(
    sock: ByteStream, versions: Mapping[str, str], proof: str | None, welcome: Message
) -> None:
    """Sends the server's last message: its proof where a token is required, and `welcome`."""
    proved = {} if proof is None else {"proof": proof}
    send_message(sock, {**local_peer(versions).to_message(), **proved, **welcome}, Transcript())


def refuse_client(sock: ByteStream, error: Exception) -> None:
    """Sends a client, in place of a welcome, why its connection is closed."""
    message: Message = {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, Busy):
        message["retry_after_s"] = round(error.retry_after_s, 3)
    send_message(sock, message, Transcript())
