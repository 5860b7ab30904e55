from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxd_protocol import PROTOCOL_VERSION, __version__
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    ConfigurationError,
    NoServer,
    ProtocolError,
    VersionMismatch,
)
from jaxd_protocol.network import handshake as module
from jaxd_protocol.network import tcp_owners
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.handshake import (
    MAGIC,
    UNIX,
    ByteStream,
    ChannelBinding,
    ClientIdentity,
    Peer,
    Transcript,
    finish_handshake,
    handshake_with_client,
    handshake_with_server,
    local_peer,
    receive_message,
    refuse_client,
    send_message,
)
from jaxd_protocol.wire.frames import HEADER, MAX_BODY_BYTES

TOKEN = "a token that is long enough to be one"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The client's socket and the server's."""
    client, server = socket.socketpair()
    with client, server:
        for sock in (client, server):
            sock.settimeout(10)
        yield client, server


class Noting:
    """A socket, and what has gone through it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received: list[bytes] = []
        self.sent: list[bytes] = []

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        self.received.append(self.sock.recv(count, flags))
        return self.received[-1]

    def sendall(self, data: bytes, /) -> None:
        self.sent.append(data)
        self.sock.sendall(data)


def serve(
    sock: ByteStream, who: str | Sequence[Account] | None, channel: ChannelBinding = UNIX
) -> ClientIdentity:
    """The side of a server with a token or with accounts, from the first byte to the last."""
    assert sock.recv(len(MAGIC), socket.MSG_WAITALL) == MAGIC
    accounts = [Account.unnamed(who)] if isinstance(who, str) else who or []
    client_identity, proof = handshake_with_client(sock, channel, accounts, "uid:7")
    finish_handshake(sock, {"jax": "1"}, proof, {"session": "s", "slots": 4})
    return client_identity


def meet(client: Callable[[], Any], server: Callable[[], Any]) -> tuple[Any, Any]:
    """What each side returned, or raised."""
    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(client), pool.submit(server)]
        ends = [side.exception() or side.result() for side in sides]
    return ends[0], ends[1]


@pytest.mark.parametrize(("device", "told"), [(None, None), (3, 3), (0, 0), ("3", None)])
def test_a_client_may_want_a_device(pair: Pair, device: Any, told: int | None) -> None:
    """Proved with the rest; what is no number is none."""
    client, server = pair
    _, client_identity = meet(
        lambda: handshake_with_server(client, UNIX, {}, TOKEN, None, device),
        lambda: serve(server, TOKEN),
    )
    assert (client_identity.device, client_identity.account) == (told, Account.unnamed(TOKEN))


def test_a_device_that_is_not_there_is_a_choice_to_be_changed(pair: Pair) -> None:
    """In the server's own words."""
    client, server = pair

    def refuse_it() -> None:
        assert server.recv(len(MAGIC), socket.MSG_WAITALL) == MAGIC
        handshake_with_client(server, UNIX, (), "uid:7")
        refuse_client(server, ConfigurationError("there are 8"))

    error, _ = meet(lambda: handshake_with_server(client, UNIX, {}, None, None, 9), refuse_it)
    assert (type(error), str(error)) == (ConfigurationError, "there are 8")


@pytest.mark.parametrize("token", [None, TOKEN])
def test_two_ends_that_belong_together_meet(pair: Pair, token: str | None) -> None:
    """Each learns what the other is, and the client what the server grants."""
    client, server = pair
    welcome, client_identity = meet(
        lambda: handshake_with_server(client, UNIX, {"numpy": "2"}, token, "old session"),
        lambda: serve(server, token),
    )
    assert (welcome["session"], welcome["slots"]) == ("s", 4)
    assert welcome["peer"].versions["jax"] == "1"
    assert client_identity.session == "old session"
    assert client_identity.peer.versions["numpy"] == "2"
    assert (
        client_identity.principal == "uid:7"
        if token is None
        else client_identity.principal == "token"
    )
    assert TOKEN not in repr(client_identity)


def test_a_wrong_token_is_refused_and_says_so(pair: Pair) -> None:
    """On both sides, with what to do."""
    client, server = pair
    ends = meet(
        lambda: handshake_with_server(client, UNIX, {}, "wrong", None), lambda: serve(server, TOKEN)
    )
    for error in ends:
        assert isinstance(error, AuthenticationFailed)
        assert "wrong token. Use the one that the server was started with" in str(error)


GREETING = {**local_peer({}).to_message(), "channel": UNIX.to_message()}
ALICE, BOB = Account.named("alice", "a" * 43), Account.named("bob", "b" * 43)


@pytest.mark.parametrize("who", [ALICE, BOB, Account.unnamed(TOKEN)], ids=lambda one: one.principal)
def test_a_server_with_several_accounts_knows_who_comes(pair: Pair, who: Account) -> None:
    """By the proof alone: no name is said, and the answer proves the same token."""
    client, server = pair[0], Noting(pair[1])
    welcome, client_identity = meet(
        lambda: handshake_with_server(client, UNIX, {}, who.token, None),
        lambda: serve(server, [ALICE, BOB, Account.unnamed(TOKEN)]),
    )
    assert welcome["session"] == "s"
    assert (client_identity.principal, client_identity.account) == (who.principal, who)
    spoken = b"".join(server.received + server.sent)
    assert not any(word in spoken for word in (b"alice", b"bob", b"account", who.token.encode()))


def test_every_stranger_is_held_against_every_account(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once the right one is found: the time that it takes says nothing of who comes."""
    held: list[str] = []
    same = module._same

    def noted(expected: str, proof: object) -> bool:
        held.append(expected)
        return same(expected, proof)

    monkeypatch.setattr(module, "_same", noted)
    client, server = pair
    meet(
        lambda: handshake_with_server(client, UNIX, {}, ALICE.token, None),
        lambda: serve(server, [ALICE, BOB]),
    )
    assert len(set(held)) == 3  # those of both at the server, and the server's own at the client


@pytest.mark.parametrize("token", ["wrong", "alice", "bob", ""])
def test_a_stranger_learns_nothing_of_names(pair: Pair, token: str) -> None:
    """The answer is the same to the last byte, whatever was tried."""
    client, server = pair
    told: list[Any] = []

    def greet() -> None:
        said = Transcript()
        client.sendall(MAGIC)
        send_message(client, {**GREETING, "nonce": "0"}, said)
        receive_message(client, said)
        send_message(client, {"session": None, "versions": {}}, said)
        send_message(client, {"proof": said.proof(token, "client")}, said)
        told.append(receive_message(client, said))

    _, error = meet(greet, lambda: serve(server, [ALICE, BOB]))
    assert isinstance(error, AuthenticationFailed)
    assert told == [{"error": "AuthenticationFailed", "text": str(error)}]
    assert not any(name in str(error) for name in ("alice", "bob"))


def test_a_missing_token_says_where_it_belongs(pair: Pair) -> None:
    """Nothing but the greeting was sent then."""
    client, server = pair

    def without_token() -> None:
        with client:
            handshake_with_server(client, UNIX, {}, None, None)

    here, there = meet(without_token, lambda: serve(server, TOKEN))
    assert isinstance(here, AuthenticationFailed)
    assert "JAXD_TOKEN_FILE" in str(here)
    assert isinstance(there, EOFError)


def impostor(sock: socket.socket, last: Callable[[Transcript, str], dict[str, Any]]) -> None:
    """A server without the token that lets everybody in."""
    sock.recv(len(MAGIC), socket.MSG_WAITALL)
    said = Transcript()
    receive_message(sock, said)
    send_message(sock, {**GREETING, "auth": "token", "nonce": "0"}, said)
    receive_message(sock, said)
    proof = receive_message(sock, said)["proof"]
    send_message(sock, {**local_peer({}).to_message(), **last(said, proof)}, said)


@pytest.mark.parametrize(
    "proof",
    [
        lambda said, own: {},
        lambda said, own: {"proof": None},
        lambda said, own: {"proof": ""},
        lambda said, own: {"proof": "\ud800"},
        lambda said, own: {"proof": said.proof("a guess", "server")},
        lambda said, own: {"proof": said.proof(TOKEN, "client")},
        lambda said, own: {"proof": own},
    ],
    ids=["none", "null", "empty", "no text", "a guess", "the other role", "the client's own"],
)
def test_a_server_without_the_token_is_found_out(
    pair: Pair, proof: Callable[[Transcript, str], dict[str, Any]]
) -> None:
    """Before the client sends it any code."""
    client, server = pair
    error, _ = meet(
        lambda: handshake_with_server(client, UNIX, {}, TOKEN, None),
        lambda: impostor(server, proof),
    )
    assert isinstance(error, AuthenticationFailed)
    assert "impostor" in str(error)


def test_a_server_that_does_not_ask_for_the_token_is_not_trusted(pair: Pair) -> None:
    """Else an impostor need only not ask."""
    client, server = pair
    error, _ = meet(
        lambda: handshake_with_server(client, UNIX, {}, TOKEN, None), lambda: serve(server, None)
    )
    assert isinstance(error, AuthenticationFailed)
    assert "did not ask for the token" in str(error)


def relay(
    source: socket.socket, sink: socket.socket, seen: bytearray, old: bytes, new: bytes
) -> None:
    """Hands on what comes, changed and written down; ends both when either ends."""
    while data := source.recv(1 << 16):
        seen += data
        sink.sendall(data.replace(old, new))
    sink.shutdown(socket.SHUT_WR)


def meet_through(
    pair: Pair,
    token: str,
    old: bytes,
    new: bytes,
    channel: Callable[[socket.socket, str], ChannelBinding] = lambda sock, role: UNIX,
) -> tuple[Any, Any, bytearray]:
    """The two sides with somebody in the middle, and all that was said."""
    (client, near), (far, server) = pair, socket.socketpair()
    seen = bytearray()
    with far, server:
        threads = [
            threading.Thread(target=relay, args=(source, sink, seen, old, new))
            for source, sink in ((near, far), (far, near))
        ]
        for thread in threads:
            thread.start()

        def ask() -> Any:
            try:
                return handshake_with_server(
                    client, channel(client, "client"), {}, token, "session-of-ann"
                )
            finally:
                client.shutdown(socket.SHUT_WR)

        def answer() -> Any:
            try:
                return serve(server, TOKEN, channel(server, "server"))
            finally:
                server.shutdown(socket.SHUT_WR)

        here, there = meet(ask, answer)
        for thread in threads:
            thread.join()
    return here, there, seen


def test_nothing_that_was_said_can_be_altered_on_the_way(pair: Pair) -> None:
    """Here the session that the client asks for."""
    _, there, _ = meet_through(pair, TOKEN, b"session-of-ann", b"session-of-bob")
    assert isinstance(there, AuthenticationFailed)


RELAYED = [
    (b"", b""),
    (b'"uid":2222', b'"uid":1111'),
    (b'"uid":3333', b'"uid":1111'),
]


@pytest.mark.parametrize("end", ["client", "server"])
@pytest.mark.parametrize(("old", "new"), RELAYED, ids=["as it is", "client", "server"])
def test_who_relays_all_of_it_gets_no_proof_that_is_worth_something(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, end: str
) -> None:
    """User 1111 owns both other ends. One end alone finds it out, whatever is altered on the way.

    The other end is one that knows nothing of its peer and takes everybody.
    """
    own, other = {"client": 2222, "server": 3333}, {"client": 3333, "server": 2222}
    owners: dict[socket.socket, int] = {}
    monkeypatch.setattr(tcp_owners, "owner_of_peer", owners.__getitem__)

    def channel(sock: socket.socket, role: str) -> ChannelBinding:
        class Owned(ChannelBinding):
            def said(self) -> dict[str, Any]:
                return {"kind": "tcp", "uid": own[role], "insecure": False}

        owners[sock] = 1111 if role == end else other[role]
        return Owned("tcp", sock=sock)

    here, there, _ = meet_through(pair, TOKEN, old, new, channel)
    assert isinstance(here, AuthenticationFailed | EOFError)
    assert isinstance(there, AuthenticationFailed | ProtocolError | EOFError)


def test_versions_are_for_those_who_have_proved_the_token(pair: Pair) -> None:
    """Before that, each end says what it takes to be refused with a reason, in as many messages."""
    client, server = map(Noting, pair)
    welcome, client_identity = meet(
        lambda: handshake_with_server(client, UNIX, {"numpy": "2.99"}, TOKEN, "session", 3),
        lambda: serve(server, TOKEN),
    )
    assert welcome["peer"].versions == {"jaxd": __version__, "jax": "1"}
    assert client_identity.peer.versions == {"jaxd": __version__, "numpy": "2.99"}
    assert (client_identity.session, client_identity.device) == ("session", 3)
    assert [len(end.sent) for end in (client, server)] == [2, 2]
    assert client.sent[0].startswith(MAGIC), "over TCP a second piece would wait for the first"
    for first in (client.sent[0], server.sent[0]):
        assert b'"versions":{}' in first
        assert not any(word in first for word in (__version__.encode(), b"2.99", b"session"))


@pytest.mark.parametrize("insecure", [False, True])
def test_a_server_that_asks_for_no_proof_over_tcp(insecure: bool) -> None:
    """Is spoken with where the address says so, and else learns nothing of the client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 10)
        with client, listener.accept()[0] as server:
            channel = ChannelBinding("tcp", sock=client, insecure=insecure)
            here, there = meet(
                lambda: handshake_with_server(client, channel, {"numpy": "2.99"}, None, "session"),
                lambda: serve(server, None),
            )
    assert isinstance(there, ClientIdentity)
    assert there.session == ("session" if insecure else None)
    assert there.peer.versions == ({"jaxd": __version__, "numpy": "2.99"} if insecure else {})
    if insecure:
        assert here["session"] == "s"
    else:
        assert isinstance(here, AuthenticationFailed)
        assert "?insecure=1" in str(here)


def test_the_token_itself_is_never_sent(pair: Pair) -> None:
    """Neither way, in no form that can be read back."""
    here, there, seen = meet_through(pair, TOKEN, b"", b"")
    assert isinstance(there, ClientIdentity)
    assert here["session"] == "s"
    assert b"proof" in seen
    for form in (TOKEN.encode(), TOKEN[:8].encode(), TOKEN.encode().hex().encode()):
        assert form not in seen


def test_a_conversation_cannot_be_replayed(pair: Pair) -> None:
    """A proof holds for the server's nonce alone."""
    _, _, seen = meet_through(pair, TOKEN, b"", b"")
    hello = seen[seen.index(MAGIC) + len(MAGIC) :]
    start = seen.index(b'{"versions":', seen.index(b'"auth":"token"'))
    end = seen.index(b"}", seen.index(b'{"proof":"', start)) + 1
    said = bytes(seen[start - 2 : end])
    client, server = socket.socketpair()
    with client, server:
        size = 2 + struct.unpack("!H", hello[:2])[0]
        client.sendall(MAGIC + hello[:size] + said)
        server.settimeout(10)
        with pytest.raises(AuthenticationFailed):
            serve(server, TOKEN)


HERE = local_peer({"jax": "0.10"})
OTHER_PYTHON = Peer(HERE.protocol, (3, 9), "610d0d0a", {})
OTHER_MAGIC = Peer(HERE.protocol, HERE.python, "00000000", {})
OTHER_PROTOCOL = Peer(99, HERE.python, HERE.magic, {"jaxd": "9.9"})


@pytest.mark.parametrize("other", [OTHER_PYTHON, OTHER_MAGIC, OTHER_PROTOCOL])
def test_ends_that_cannot_exchange_code_do_not_meet(pair: Pair, other: Peer) -> None:
    """The server tells the client why, before anything else."""
    client, server = pair

    def greet() -> Any:
        said = Transcript()
        client.sendall(MAGIC)
        send_message(client, other.to_message(), said)
        return receive_message(client, said)

    told, error = meet(greet, lambda: serve(server, TOKEN))
    assert isinstance(error, VersionMismatch)
    assert told == {"error": "VersionMismatch", "text": str(error)}


def test_the_client_compares_versions_too(pair: Pair) -> None:
    """A server of another Python may not know better."""
    client, server = pair

    def answer() -> None:
        server.recv(len(MAGIC), socket.MSG_WAITALL)
        send_message(server, {**OTHER_PYTHON.to_message(), "auth": "none"}, Transcript())

    error, _ = meet(lambda: handshake_with_server(client, UNIX, {}, None, None), answer)
    assert isinstance(error, VersionMismatch)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AuthenticationFailed, AuthenticationFailed),
        (VersionMismatch, VersionMismatch),
        (ProtocolError, ProtocolError),
        (ZeroDivisionError, NoServer),
    ],
)
def test_a_refusal_arrives_as_what_it_is(
    pair: Pair, kind: type[Exception], expected: type[Exception]
) -> None:
    """But only as one of our own kinds."""
    client, server = pair
    refuse_client(server, kind("because"))
    with pytest.raises(expected, match=r"^because$") as caught:
        handshake_with_server(client, UNIX, {}, None, None)
    assert type(caught.value) is expected


@pytest.mark.parametrize(("said", "heard"), [(7.5, 7.5), ("x", 1.0), (-1, 1.0), (1e9, 1.0)])
def test_who_is_to_come_later_is_told_when(pair: Pair, said: Any, heard: float) -> None:
    """What makes no sense is a second."""
    client, server = pair
    refuse_client(server, Busy("because", said)) if said == heard else send_message(
        server, {"error": "Busy", "text": "because", "retry_after_s": said}, Transcript()
    )
    with pytest.raises(Busy, match=r"^because$") as caught:
        handshake_with_server(client, UNIX, {}, None, None)
    assert caught.value.retry_after_s == heard


DEEP = b"[" * 4000
greeting = {"protocol": PROTOCOL_VERSION, "python": [3, 11], "magic": "", "versions": {}}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | st.sampled_from([b""]))
@example(DEEP)
@example(b"[1]")
@example(b'"text"')
@example(json.dumps({**greeting, "protocol": float("inf")}).encode())
@example(json.dumps({**greeting, "python": [1e999, float("nan")]}).encode())
@example(json.dumps({**greeting, "python": 3}).encode())
@example(json.dumps({**greeting, "versions": []}).encode())
def test_garbage_is_refused_in_our_own_words(data: bytes) -> None:
    """Whatever stands where the greeting belongs."""
    client, server = socket.socketpair()
    with server:
        with client:
            client.sendall(struct.pack("!H", len(data)) + data)
        with pytest.raises(ProtocolError):
            handshake_with_client(server, UNIX, (), "uid:7")


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_server_that_dies_during_the_handshake_is_no_impostor(is_reset: bool) -> None:
    """The kernel knows no owner of a socket that is closed: the connection was lost, no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 10)
        server = listener.accept()[0]
        if is_reset:  # as when it had not read everything
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hello = ChannelBinding("tcp", sock=server).to_message()
        with client:
            server.close()
            with pytest.raises(EOFError):
                ChannelBinding("tcp", sock=client).mismatch(hello)


def test_a_message_that_is_too_long_is_not_read(pair: Pair) -> None:
    """4 KiB are enough for what there is to say."""
    client, server = pair
    client.sendall(struct.pack("!H", 4097) + bytes(4097))
    with pytest.raises(ProtocolError, match="4097 bytes"):
        receive_message(server, Transcript())
    assert len(server.recv(9999)) == 4097


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\7{", b"\0\2{"])
def test_a_peer_that_leaves_is_noticed(pair: Pair, said: bytes) -> None:
    """At whatever byte."""
    client, server = pair
    client.sendall(said)
    client.close()
    with pytest.raises(EOFError):
        receive_message(server, Transcript())


def test_a_refusal_by_a_peer_that_reads_nothing_is_heard(pair: Pair) -> None:
    """A server without a place for a client closes at once; the client is to come again."""
    client, server = pair
    refuse_client(server, Busy("no place.", 2.0))
    server.close()
    with pytest.raises(Busy, match="no place") as caught:
        handshake_with_server(client, UNIX, {}, None, None)
    assert caught.value.retry_after_s == 2.0


def test_a_peer_that_says_nothing_is_not_waited_for(pair: Pair) -> None:
    """The caller's timeout bounds each step."""
    _, server = pair
    server.settimeout(0.01)
    with pytest.raises(TimeoutError):
        receive_message(server, Transcript())


def test_our_first_bytes_are_no_frame_of_rpyc() -> None:
    """A server tells our clients from stock ones by them."""
    length, _ = HEADER.unpack(MAGIC + b"\0")
    assert length > MAX_BODY_BYTES


def test_a_proof_depends_on_everything() -> None:
    """Token, role, and each message with its bounds."""

    def proof(token: str, role: str, *messages: bytes) -> str:
        said = Transcript()
        for message in messages:
            said.add(message)
        return said.proof(token, role)

    proofs = {
        proof("a", "client"),
        proof("b", "client"),
        proof("a", "server"),
        proof("a", "client", b"xy"),
        proof("a", "client", b"x", b"y"),
        proof("a", "client", b"y", b"x"),
    }
    assert len(proofs) == 6
    assert proof("a", "client", b"xy") == proof("a", "client", b"xy")
