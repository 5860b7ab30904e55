from __future__ import annotations

import json
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxd_protocol.errors import AuthenticationFailed, Busy, ProtocolError, VersionMismatch
from jaxd_protocol.network import tcp_owners
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import (
    certificate_of,
    client_context,
    fingerprint_of,
    server_context,
)
from jaxd_protocol.network.handshake import (
    MAGIC,
    ChannelBinding,
    Transcript,
    finish_handshake,
    handshake_with_server,
    local_peer,
    peer_uid,
    receive_message,
    send_message,
)
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth import authenticator as module
from jaxd_server.auth import handshake_slots
from jaxd_server.auth.authenticator import AuthenticatedPeer, Authenticator
from jaxd_server.auth.tls_setup import TlsConfig
from tests.certificates import authority
from tests.server.staging import PATIENCE_S, join, start, until

UNIX = Address.unix("/run/jaxd/s.sock")
TCP = Address.tcp("127.0.0.1", 1)
TLS = Address.tls("127.0.0.1", 1)
TOKEN = "the token"
CERTIFICATE = fingerprint_of(certificate_of(authority().certificate))
OVER_TLS = ChannelBinding("tls", CERTIFICATE)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def unix() -> Iterator[Pair]:
    """Client's and server's end of a Unix connection."""
    yield from _closed(socket.socketpair())


@pytest.fixture
def tcp() -> Iterator[Pair]:
    """Client's and server's end of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), PATIENCE_S)
        yield from _closed((client, listener.accept()[0]))


def _closed(pair: Pair) -> Iterator[Pair]:
    pair[0].settimeout(PATIENCE_S)
    yield pair
    for sock in pair:
        sock.close()


def authenticator(
    address: Address, token: str | None = None, *, stock: bool = False, uid: int | None = None
) -> Authenticator:
    """One for that address."""
    own = os.getuid() if uid is None else uid
    return Authenticator(address, lambda: accounts(token), own, stock)


def accounts(token: str | None) -> list[Account]:
    """Those of a server that was started with this token."""
    return [] if token is None else [Account.unnamed(token)]


class Handshake:
    """A client that comes to an authenticator: what either end got, or how it failed."""

    def __init__(
        self, pair: Pair, keeper: Authenticator, client: Callable[[socket.socket], Any]
    ) -> None:
        self.client: Any = None
        self.server: Any = None
        thread = threading.Thread(target=self._come, args=(pair[0], client), daemon=True)
        thread.start()
        try:
            self.server = self._admit(pair[1], keeper)
        except (ConnectionError, EOFError, OSError, Busy) as error:
            self.server = error
            pair[1].close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    def _come(self, sock: socket.socket, client: Callable[[socket.socket], Any]) -> None:
        try:
            self.client = client(sock)
        except (ConnectionError, EOFError, OSError, Busy) as error:
            self.client = error
            sock.close()

    def _admit(self, sock: socket.socket, keeper: Authenticator) -> AuthenticatedPeer:
        admitted = keeper.admit(sock)
        if admitted.client_identity is not None:
            finish_handshake(sock, {}, admitted.proof, {"session": "s"})
        return admitted


def plain(sock: socket.socket, *, insecure: bool = True) -> ChannelBinding:
    """What a client knows of a connection without TLS."""
    if sock.family == socket.AF_UNIX:
        return ChannelBinding("unix")
    return ChannelBinding("tcp", sock=sock, insecure=insecure)


def with_token(token: str | None) -> Callable[[socket.socket], Any]:
    """Our own client."""
    return lambda sock: handshake_with_server(sock, plain(sock), {"numpy": "2"}, token, "resumed")


def saying(data: bytes, *, leave: bool = True) -> Callable[[socket.socket], Any]:
    """A client that says only that."""

    def say(sock: socket.socket) -> None:
        sock.sendall(data)
        if leave:
            sock.shutdown(socket.SHUT_WR)

    return say


STOCK = b"\x00\x00\x00\x10\x00" + bytes(17)  # the beginning of an rpyc frame


# who is it? ---------------------------------------------------------------------------------------


def test_the_user_at_the_other_end_is_known() -> None:
    """On a real Unix socket, as the system says."""
    path = f"/tmp/jaxd-{os.getpid()}-{threading.get_ident()}.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        os_unlink = os.unlink
        listener.listen()
        client.connect(path)
        with listener.accept()[0] as accepted:
            assert peer_uid(accepted) == os.getuid()
        os_unlink(path)


def test_where_the_system_does_not_tell_nobody_is_refused(
    unix: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the socket is the lock then."""
    monkeypatch.delattr(socket, "SO_PEERCRED")
    assert peer_uid(unix[1]) is None
    meeting = Handshake(unix, authenticator(UNIX), with_token(None))
    assert meeting.server.principal == f"uid:{os.getuid()}"


def test_our_own_user_is_let_in_without_a_token(unix: Pair) -> None:
    """The server knows what it runs, and which session it wants back."""
    meeting = Handshake(unix, authenticator(UNIX, TOKEN), with_token(None))
    assert meeting.server.principal == f"uid:{os.getuid()}"
    assert meeting.server.client_identity.session == "resumed"
    assert meeting.server.client_identity.peer.versions["numpy"] == "2"
    assert meeting.client["session"] == "s"


def test_another_user_is_refused(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own client learns why, whatever it said."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    meeting = Handshake(unix, authenticator(UNIX, uid=1234), with_token(None))
    assert type(meeting.server) is type(meeting.client) is AuthenticationFailed
    assert "user 4321 may not use the server of user 1234" in str(meeting.server)
    assert "--allow-uid 4321" in str(meeting.server)
    assert str(meeting.client) == str(meeting.server)


def test_another_user_may_be_let_in(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, as somebody of their own: nobody else's session or values are theirs."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    keeper = Authenticator(UNIX, list, 1234, False, allowed_uids=[99, 4321])
    meeting = Handshake(unix, keeper, with_token(None))
    assert meeting.server.principal == "uid:4321"


def test_a_stock_client_of_another_user_is_dropped(
    unix: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not understand the reason."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    meeting = Handshake(unix, authenticator(UNIX, uid=1234), saying(STOCK))
    assert type(meeting.server) is AuthenticationFailed


def test_another_user_is_not_waited_for(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike a stock client of ours."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    meeting = Handshake(unix, authenticator(UNIX, uid=1234), saying(b"", leave=False))
    assert isinstance(meeting.server, TimeoutError)


def test_root_is_let_in(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could do everything without us."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 0)
    assert (
        Handshake(unix, authenticator(UNIX, uid=1234), with_token(None)).server.principal == "uid:0"
    )


def test_where_the_system_does_not_tell_nobody_comes_to_a_shared_socket(
    unix: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder, which others can enter, is no lock."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: None)
    keeper = Authenticator(UNIX, list, os.getuid(), False, allowed_uids=[4321])
    meeting = Handshake(unix, keeper, with_token(None))
    assert type(meeting.server) is type(meeting.client) is AuthenticationFailed


# does it hold the token? --------------------------------------------------------------------------


def test_the_token_is_proved_both_ways(tcp: Pair) -> None:
    """And never sent."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), with_token(TOKEN))
    assert meeting.server.principal == "token"
    assert TOKEN not in repr(meeting.server)
    assert meeting.client["session"] == "s"


def test_a_wrong_token_is_refused(tcp: Pair) -> None:
    """Both ends say so."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), with_token("another one"))
    assert type(meeting.client) is type(meeting.server) is AuthenticationFailed
    assert "wrong token" in str(meeting.client)


def test_a_client_without_a_token_is_told_what_it_needs(tcp: Pair) -> None:
    """It has sent nothing that could be of use to an impostor."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), with_token(None))
    assert type(meeting.client) is AuthenticationFailed
    assert "JAXD_TOKEN" in str(meeting.client)


def test_a_server_without_a_token_takes_nobody_over_tcp(tcp: Pair) -> None:
    """Our own client gets a typed error."""
    meeting = Handshake(tcp, authenticator(TCP), with_token(None))
    assert type(meeting.client) is type(meeting.server) is AuthenticationFailed
    assert "no token" in str(meeting.client)


def test_an_open_loopback_needs_no_token(tcp: Pair) -> None:
    """When the server was told to leave it open."""
    meeting = Handshake(tcp, authenticator(TCP, stock=True), with_token(None))
    assert meeting.server.principal == "anonymous@127.0.0.1"


def test_an_open_loopback_still_asks_for_a_token_that_there_is(tcp: Pair) -> None:
    """Of our own clients, which can prove it."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN, stock=True), with_token("another one"))
    assert type(meeting.server) is AuthenticationFailed


def test_too_many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones of that address are looked at later, right or wrong; others' are at once."""
    keeper = authenticator(TCP, TOKEN)

    def come(token: str) -> Handshake:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname(), PATIENCE_S)
            with client, listener.accept()[0] as accepted:
                return Handshake((client, accepted), keeper, with_token(token))

    said = {type(come("wrong").client) for _ in range(20)}
    assert said == {AuthenticationFailed}
    for token in ("wrong", TOKEN):
        late = come(token)
        assert type(late.client) is type(late.server) is Busy
        assert 0 < late.client.retry_after_s <= 3.0
        assert "127.0.0.1" in str(late.client)
    monkeypatch.setattr(module, "rate_limit_key", lambda peer: "elsewhere")
    assert come(TOKEN).client["session"] == "s"


def test_users_of_this_machine_are_counted_apart(owner: Callable[[int | None], None]) -> None:
    """Wrong tokens of another user keep nobody else waiting."""
    keeper = Authenticator(TCP, lambda: accounts(TOKEN), os.getuid(), False, insecure=True)

    def come(token: str) -> Handshake:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname(), PATIENCE_S)
            with client, listener.accept()[0] as accepted:
                return Handshake(
                    (client, accepted),
                    keeper,
                    lambda sock: handshake_with_server(
                        sock, plain(sock, insecure=True), {}, token, None
                    ),
                )

    owner(4321)
    for _ in range(20):
        come("wrong")
    assert type(come(TOKEN).client) is Busy
    owner(os.getuid())
    assert come(TOKEN).client["session"] == "s"


def test_accounts_come_and_go_while_the_server_runs(tcp: Pair) -> None:
    """They are asked for when somebody comes."""
    known = [Account.named("alice", "a"), Account.named("bob", "b")]
    keeper = Authenticator(TCP, lambda: known, os.getuid(), False)
    assert Handshake(tcp, keeper, with_token("b")).server.principal == "account:bob"
    del known[1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), PATIENCE_S)
        with client, listener.accept()[0] as accepted:
            meeting = Handshake((client, accepted), keeper, with_token("b"))
    assert type(meeting.client) is AuthenticationFailed


def test_strangers_take_no_memory(tcp: Pair) -> None:
    """Whatever length they announce, and before it is known who they are."""
    keeper = authenticator(TCP, TOKEN)
    tcp[0].sendall(MAGIC + b"\xff\xff" + bytes(65000))
    tcp[0].shutdown(socket.SHUT_WR)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            keeper.admit(tcp[1])
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


# does the connection lead straight to it? ---------------------------------------------------------


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets whom the kernel says the other end of a TCP connection belongs to."""

    def set_it(uid: int | None) -> None:
        monkeypatch.setattr(tcp_owners, "owner_of_peer", lambda sock: uid)

    return set_it


@pytest.mark.parametrize("uid", [4321, None])
def test_another_users_end_of_the_connection(
    tcp: Pair, owner: Callable[[int | None], None], uid: int | None
) -> None:
    """Or one of which nobody knows: refused, and not counted as a wrong token."""
    owner(uid)
    keeper = authenticator(TCP, TOKEN)
    meeting = Handshake(tcp, keeper, with_token(TOKEN))
    assert isinstance(meeting.server, ProtocolError)
    assert type(meeting.client) is AuthenticationFailed
    for words in ("tls://", "ssh://", "?insecure=1", "--insecure-plaintext"):
        assert words in str(meeting.client)
    assert keeper._failures.wait_s("127.0.0.1") == 0.0
    assert keeper._failures._bucket("127.0.0.1").height == 0.0


@pytest.mark.parametrize(("client", "server"), [(True, True), (True, False), (False, True)])
def test_both_ends_have_to_accept_that_somebody_may_stand_in_between(
    tcp: Pair, owner: Callable[[int | None], None], client: bool, server: bool
) -> None:
    """Each in words of its own; the token is asked for all the same."""
    owner(None)
    keeper = Authenticator(TCP, lambda: accounts(TOKEN), os.getuid(), False, insecure=server)
    said = Handshake(
        tcp,
        keeper,
        lambda sock: handshake_with_server(sock, plain(sock, insecure=client), {}, TOKEN, None),
    )
    assert isinstance(said.server, AuthenticatedPeer) is (client and server)


def test_another_certificate_than_the_servers_own(tcp: Pair) -> None:
    """Whoever has shown it ends TLS in between, and can read and change all."""
    shown = ChannelBinding("tls", "ab" * 32)
    meeting = Handshake(
        tcp, secured(), over_tls(lambda line: handshake_with_server(line, shown, {}, TOKEN, None))
    )
    assert isinstance(meeting.server, ProtocolError)
    assert "another certificate" in str(meeting.client)


# does it speak our language? ----------------------------------------------------------------------


def test_a_stock_client_may_come_over_a_unix_socket(unix: Pair) -> None:
    """What it sent is still there to be read."""
    meeting = Handshake(unix, authenticator(UNIX), saying(STOCK))
    assert meeting.server == AuthenticatedPeer(unix[1], f"uid:{os.getuid()}")
    assert unix[1].recv(100) == STOCK


def test_a_stock_client_may_not_come_over_tcp(tcp: Pair) -> None:
    """Unless the loopback is left open."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), saying(STOCK))
    assert type(meeting.server) is ProtocolError
    assert "--allow-unauthenticated-loopback" in str(meeting.server)


def test_a_stock_client_may_come_over_an_open_loopback(tcp: Pair) -> None:
    """As the client of many examples does."""
    meeting = Handshake(tcp, authenticator(TCP, stock=True), saying(STOCK))
    assert meeting.server == AuthenticatedPeer(tcp[1], "anonymous@127.0.0.1")


def test_an_open_loopback_is_not_open_to_other_machines(tcp: Pair) -> None:
    """The flag says loopback."""
    beyond = authenticator(Address.tcp("0.0.0.0", 1), TOKEN, stock=True)
    assert type(Handshake(tcp, beyond, saying(STOCK)).server) is ProtocolError


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        MAGIC + b"\xff\xff" + bytes(100),
        MAGIC + b"\x00\x00",
        MAGIC + b"\x00\x04nope",
        MAGIC + b"\x00\x02[]",
        MAGIC + b"\x00\x02{}",
        MAGIC + b'\x00\x0d{"python": 3}',
    ],
)
def test_garbage_is_refused(tcp: Pair, garbage: bytes) -> None:
    """With an error of our own, and without taking memory for what it announces."""
    assert type(Handshake(tcp, authenticator(TCP, TOKEN), saying(garbage)).server) is ProtocolError


def test_another_version_is_told_so(unix: Pair) -> None:
    """Before anything is unpickled; what to start instead stands in the message."""

    def old(sock: socket.socket) -> Any:
        said = Transcript()
        sock.sendall(MAGIC)
        hello = {**local_peer({}).to_message(), "python": [3, 6], "nonce": "0"}
        send_message(sock, hello, said)
        return receive_message(sock, said)

    meeting = Handshake(unix, authenticator(UNIX), old)
    assert type(meeting.server) is VersionMismatch
    assert meeting.client["error"] == "VersionMismatch"
    assert "Start a server with Python 3.6" in meeting.client["text"]


@pytest.mark.parametrize("said", [b"", b"JA", MAGIC, MAGIC + b"\x00", MAGIC + b"\x00\x20{"])
def test_a_peer_that_leaves_early_is_no_error(tcp: Pair, said: bytes) -> None:
    """It connected, perhaps only to see whether somebody is there."""
    assert type(Handshake(tcp, authenticator(TCP, TOKEN), saying(said)).server) is EOFError


@pytest.mark.parametrize("said", [b"", MAGIC, MAGIC + b"\x00\x20{"])
def test_a_slow_peer_is_not_waited_for(
    tcp: Pair, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep a thread for ever."""
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), saying(said, leave=False))
    assert isinstance(meeting.server, TimeoutError)


def test_a_slow_peer_on_a_unix_socket_is_not_waited_for_either(
    unix: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has said that it is one of ours; a stock client speaks when it has something to."""
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    meeting = Handshake(unix, authenticator(UNIX), saying(MAGIC, leave=False))
    assert isinstance(meeting.server, TimeoutError)


def test_a_trickling_peer_is_not_waited_for(tcp: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake, however many bytes come in it."""
    monkeypatch.setattr(module, "GREETING_S", 0.3)
    over = threading.Event()

    def trickle(sock: socket.socket) -> None:
        sock.sendall(MAGIC + b"\x0f\xff")
        while not over.wait(0.02):
            sock.sendall(b" ")

    def admit() -> None:
        try:
            with pytest.raises(TimeoutError):
                authenticator(TCP, TOKEN).admit(tcp[1])
        finally:
            over.set()

    thread = threading.Thread(target=trickle, args=(tcp[0],), daemon=True)
    thread.start()
    admit()
    thread.join(PATIENCE_S)


def test_a_silent_peer_is_waited_for_two_seconds(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then told to come again, in case that it is one of ours on a busy machine."""
    monkeypatch.setattr(module, "FIRST_BYTES_S", 0.05)

    def late(sock: socket.socket) -> Any:
        assert sock.recv(1, socket.MSG_PEEK)
        return handshake_with_server(sock, plain(sock), {}, TOKEN, None)

    meeting = Handshake(tcp, authenticator(TCP, TOKEN), late)
    assert isinstance(meeting.server, TimeoutError)
    assert type(meeting.client) is Busy


def test_a_silent_peer_gives_its_place_to_one_that_speaks(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when both come from the same address; it is told so."""
    monkeypatch.setattr(handshake_slots, "MAX_HANDSHAKES", 1)
    keeper = authenticator(TCP, TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = socket.create_connection(listener.getsockname(), PATIENCE_S)
        with silent, listener.accept()[0] as accepted:
            waiting = start(pytest.raises, Busy, keeper.admit, accepted)
            until(lambda: keeper._handshake_slots._peers)
            assert Handshake(tcp, keeper, with_token(TOKEN)).client["session"] == "s"
            join([waiting])
            with pytest.raises(Busy):
                handshake_with_server(silent, plain(silent), {}, TOKEN, None)


def test_a_unix_socket_has_room_for_any_number(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all the same user's."""
    monkeypatch.setattr(handshake_slots, "MAX_HANDSHAKES", 0)
    assert Handshake(unix, authenticator(UNIX), with_token(None)).client["session"] == "s"


# TLS ----------------------------------------------------------------------------------------------


def secured(token: str | None = TOKEN, *, stock: bool = False) -> Authenticator:
    """One for TLS."""
    tls = TlsConfig(server_context(*authority()), CERTIFICATE)
    return Authenticator(TLS, lambda: accounts(token), os.getuid(), stock, tls=tls)


def over_tls(then: Callable[[TlsSocket], Any]) -> Callable[[socket.socket], Any]:
    """A client that shakes hands over TLS first."""

    def come(sock: socket.socket) -> Any:
        line = TlsSocket(sock, client_context(pinned=True))
        line.settimeout(PATIENCE_S)
        line.do_handshake()
        return then(line)

    return come


def test_a_client_comes_over_tls(tcp: Pair) -> None:
    """With the token all the same; the rest is spoken over TLS."""
    versions = {"numpy": "2"}

    def client(line: TlsSocket) -> Any:
        return handshake_with_server(line, OVER_TLS, versions, TOKEN, None)

    keeper = secured()

    class Finishing(Authenticator):
        def admit(self, sock: socket.socket) -> AuthenticatedPeer:
            admitted = keeper.admit(sock)
            finish_handshake(admitted.stream, {}, admitted.proof, {"session": "s"})
            return admitted

    meeting = Handshake(tcp, Finishing(TLS, list, 0, False), over_tls(client))
    assert isinstance(meeting.server.stream, TlsSocket)
    assert meeting.server.principal == "token"
    assert meeting.client["session"] == "s"


@pytest.mark.parametrize("stock", [False, True])
def test_a_token_is_asked_for_over_tls(tcp: Pair, stock: bool) -> None:
    """Encryption says nothing about who speaks; loopback does not matter either."""
    meeting = Handshake(
        tcp,
        secured(stock=stock),
        over_tls(lambda line: handshake_with_server(line, OVER_TLS, {}, "x", None)),
    )
    assert isinstance(meeting.server, AuthenticationFailed)
    assert isinstance(meeting.client, AuthenticationFailed)


def test_without_a_token_nobody_comes_over_tls(tcp: Pair) -> None:
    """Also when somebody forgot to look at the start."""
    meeting = Handshake(
        tcp,
        secured(None),
        over_tls(lambda line: handshake_with_server(line, OVER_TLS, {}, None, None)),
    )
    assert isinstance(meeting.server, AuthenticationFailed)
    assert isinstance(meeting.client, Exception)


def test_a_client_without_tls_is_told(tcp: Pair) -> None:
    """In plain text, which is what it understands; nothing else is said to it."""
    meeting = Handshake(
        tcp, secured(), lambda sock: handshake_with_server(sock, plain(sock), {}, TOKEN, None)
    )
    assert "tls://" in str(meeting.client)
    assert isinstance(meeting.client, AuthenticationFailed)


def test_somebody_else_who_speaks_tls_is_dropped(tcp: Pair) -> None:
    """As a browser."""
    meeting = Handshake(
        tcp, secured(), over_tls(lambda line: line.sendall(b"GET / HTTP/1.1\r\n\r\n"))
    )
    assert isinstance(meeting.server, ProtocolError)


@pytest.mark.slow
def test_a_peer_that_says_nothing_within_tls_is_told_within_it(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert in plain text is no message to an end that has keys."""
    monkeypatch.setattr(module, "GREETING_S", 2.0)
    meeting = Handshake(tcp, secured(), over_tls(lambda line: line.recv(4096)))
    assert isinstance(meeting.server, TimeoutError)
    assert json.loads(meeting.client[2:])["error"] == "Busy"


def test_a_peer_that_trickles_tls_is_not_waited_for(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is for the handshakes of TLS and of jaxd together."""
    monkeypatch.setattr(module, "GREETING_S", 0.2)
    meeting = Handshake(tcp, secured(), lambda sock: sock.sendall(b"\x16\x03\x01\x02"))
    assert isinstance(meeting.server, TimeoutError)
