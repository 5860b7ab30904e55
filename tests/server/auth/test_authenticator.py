from __future__ import annotations

import json
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jaxd
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
from jaxd_protocol.network.tokens import write_token_file
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth import authenticator as module
from jaxd_server.auth import handshake_slots
from jaxd_server.auth.accounts import Accounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, Authenticator, authenticator_factory
from jaxd_server.auth.tls_setup import TlsConfig
from jaxd_server.config.options import ServerOptions
from tests.certificates import authority
from tests.server.in_process import InProcessServer
from tests.server.staging import PATIENCE_S, join, start, until

UNIX = Address.unix("/run/jaxd/s.sock")
TCP = Address.tcp("127.0.0.1", 1)
TLS = Address.tls("127.0.0.1", 1)
TOKEN = "the token"
CERTIFICATE = fingerprint_of(certificate_of(authority().certificate))
OVER_TLS = ChannelBinding("tls", CERTIFICATE)

Pair = tuple[socket.socket, socket.socket]
Client = Callable[[socket.socket], Any]


@contextmanager
def tcp_pair() -> Iterator[Pair]:
    """Client's and server's end of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), PATIENCE_S)
        with client, listener.accept()[0] as accepted:
            yield client, accepted


@pytest.fixture
def unix() -> Iterator[Pair]:
    """Client's and server's end of a Unix connection."""
    client, server = socket.socketpair()
    client.settimeout(PATIENCE_S)
    with client, server:
        yield client, server


@pytest.fixture
def tcp() -> Iterator[Pair]:
    """The same over TCP."""
    with tcp_pair() as pair:
        yield pair


def authenticator(
    address: Address, token: str | None = None, *, stock: bool = False, uid: int | None = None
) -> Authenticator:
    """One for that address."""
    own = os.getuid() if uid is None else uid
    return Authenticator(address, lambda: accounts(token), own, stock)


def secured(token: str | None = TOKEN, *, stock: bool = False) -> Authenticator:
    """One for TLS."""
    tls = TlsConfig(server_context(*authority()), CERTIFICATE)
    return Authenticator(TLS, lambda: accounts(token), os.getuid(), stock, tls=tls)


def accounts(token: str | None) -> list[Account]:
    """Those of a server that was started with this token."""
    return [] if token is None else [Account.unnamed(token)]


class Handshake:
    """A client that comes to an authenticator: what either end got, or how it failed."""

    def __init__(self, pair: Pair, keeper: Authenticator, client: Client) -> None:
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

    def _come(self, sock: socket.socket, client: Client) -> None:
        try:
            self.client = client(sock)
        except (ConnectionError, EOFError, OSError, Busy) as error:
            self.client = error
            sock.close()

    def _admit(self, sock: socket.socket, keeper: Authenticator) -> AuthenticatedPeer:
        admitted = keeper.admit(sock)
        if admitted.client_identity is not None:
            finish_handshake(admitted.stream, {}, admitted.proof, {"session": "s"})
        return admitted


def plain(sock: socket.socket, *, insecure: bool = True) -> ChannelBinding:
    """What a client knows of a connection without TLS."""
    if sock.family == socket.AF_UNIX:
        return ChannelBinding("unix")
    return ChannelBinding("tcp", sock=sock, insecure=insecure)


def with_token(token: str | None, *, insecure: bool = True) -> Client:
    """Our own client."""
    return lambda sock: handshake_with_server(
        sock, plain(sock, insecure=insecure), {"numpy": "2"}, token, "resumed"
    )


def saying(data: bytes, *, leave: bool = True) -> Client:
    """A client that says only that."""

    def say(sock: socket.socket) -> None:
        sock.sendall(data)
        if leave:
            sock.shutdown(socket.SHUT_WR)

    return say


def over_tls(then: Callable[[TlsSocket], Any]) -> Client:
    """A client that shakes hands over TLS first."""

    def come(sock: socket.socket) -> Any:
        line = TlsSocket(sock, client_context(pinned=True))
        line.settimeout(PATIENCE_S)
        line.do_handshake()
        return then(line)

    return come


def tls_token(token: str | None, binding: ChannelBinding = OVER_TLS) -> Client:
    """Our own client over TLS."""
    return over_tls(lambda line: handshake_with_server(line, binding, {}, token, None))


STOCK = b"\x00\x00\x00\x10\x00" + bytes(17)  # the beginning of an rpyc frame

AUTH = AuthenticationFailed
Refusal = tuple[Callable[[], Authenticator], Client, type[Exception], type[Exception] | None, str]


def asking() -> Authenticator:
    """One that asks for the token, over TCP."""
    return authenticator(TCP, TOKEN)


def half_open() -> Authenticator:
    """One whose loopback is left open, and that has a token."""
    return authenticator(TCP, TOKEN, stock=True)


def beyond() -> Authenticator:
    """The same on all addresses."""
    return authenticator(Address.tcp("0.0.0.0", 1), TOKEN, stock=True)


REFUSED: dict[str, Refusal] = {
    "a wrong token": (asking, with_token("another one"), AUTH, AUTH, "wrong token"),
    "no token": (asking, with_token(None), EOFError, AUTH, "JAXD_TOKEN"),
    "a server without one": (lambda: authenticator(TCP), with_token(None), AUTH, AUTH, "no token"),
    "a wrong one, open loopback": (half_open, with_token("another one"), AUTH, AUTH, ""),
    "a wrong one over TLS": (secured, tls_token("x"), AUTH, AUTH, ""),
    "TLS, open loopback": (lambda: secured(stock=True), tls_token("x"), AUTH, AUTH, ""),
    "TLS, a server without one": (lambda: secured(None), tls_token(None), AUTH, Exception, ""),
    "plain text for TLS": (secured, with_token(TOKEN), Exception, AUTH, "tls://"),
    "another certificate than the server's own": (
        *(secured, tls_token(TOKEN, ChannelBinding("tls", "ab" * 32))),
        *(ProtocolError, Exception, "another certificate"),
    ),
    "a stock client": (
        *(asking, saying(STOCK), ProtocolError, None, "--allow-unauthenticated-loopback"),
    ),
    "a stock client from elsewhere": (beyond, saying(STOCK), ProtocolError, None, ""),
    "a browser over TLS": (
        *(secured, over_tls(lambda line: line.sendall(b"GET / HTTP/1.1\r\n\r\n"))),
        *(ProtocolError, None, ""),
    ),
    **{
        f"garbage {said!r:.30}": (asking, saying(said), ProtocolError, None, "")
        for said in (
            b"GET / HTTP/1.1\r\n\r\n",
            MAGIC + b"\xff\xff" + bytes(100),
            MAGIC + b"\x00\x00",
            MAGIC + b"\x00\x04nope",
            MAGIC + b"\x00\x02[]",
            MAGIC + b"\x00\x02{}",
            MAGIC + b'\x00\x0d{"python": 3}',
        )
    },
    **{
        f"a peer that leaves after {said!r}": (asking, saying(said), EOFError, None, "")
        for said in (b"", b"JA", MAGIC, MAGIC + b"\x00", MAGIC + b"\x00\x20{")
    },
}
"""The authenticator, the client, how it fails at the server and there, and in which words."""


@pytest.mark.parametrize("what", REFUSED)
def test_who_is_not_let_in_is_told_why(tcp: Pair, what: str) -> None:
    """Who has not proved the token, or speaks another language; both ends say so."""
    keeper, client, at_server, at_client, words = REFUSED[what]
    meeting = Handshake(tcp, keeper(), client)
    assert isinstance(meeting.server, at_server)
    if at_client is None:
        assert type(meeting.server) is at_server
        assert words in str(meeting.server)
    else:
        assert isinstance(meeting.client, at_client)
        assert words in str(meeting.client)


# who is it? ---------------------------------------------------------------------------------------


def test_the_user_at_the_other_end_is_known(runtime: Path) -> None:
    """On a real Unix socket, as the system says."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(f"{runtime}/a.sock")
        listener.listen()
        client.connect(f"{runtime}/a.sock")
        with listener.accept()[0] as accepted:
            assert peer_uid(accepted) == os.getuid()


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
    """Our own client learns why, whatever it said; a stock one would not understand it."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    meeting = Handshake(unix, authenticator(UNIX, uid=1234), with_token(None))
    assert type(meeting.server) is type(meeting.client) is AuthenticationFailed
    assert "user 4321 may not use the server of user 1234" in str(meeting.server)
    assert "--allow-uid 4321" in str(meeting.server)
    assert str(meeting.client) == str(meeting.server)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stock = Handshake((ours, theirs), authenticator(UNIX, uid=1234), saying(STOCK))
    assert type(stock.server) is AuthenticationFailed


@pytest.mark.parametrize(
    ("uid", "allowed", "principal"),
    [(0, (), "uid:0"), (4321, (99, 4321), "uid:4321"), (None, (4321,), None)],
    ids=["root", "by number", "unknown"],
)
def test_others_may_be_let_in(
    unix: Pair,
    monkeypatch: pytest.MonkeyPatch,
    uid: int | None,
    allowed: tuple[int, ...],
    principal: str | None,
) -> None:
    """As somebody of their own; root could do all without us. Who is not known, may be anybody."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: uid)
    meeting = Handshake(
        unix, Authenticator(UNIX, list, 1234, False, allowed_uids=allowed), with_token(None)
    )
    if principal is None:
        assert type(meeting.server) is type(meeting.client) is AuthenticationFailed
    else:
        assert meeting.server.principal == principal


# does it hold the token? --------------------------------------------------------------------------


def test_the_token_is_proved_both_ways(tcp: Pair) -> None:
    """And never sent."""
    meeting = Handshake(tcp, authenticator(TCP, TOKEN), with_token(TOKEN))
    assert meeting.server.principal == "token"
    assert TOKEN not in repr(meeting.server)
    assert meeting.client["session"] == "s"


def test_an_open_loopback_needs_no_token(tcp: Pair) -> None:
    """When the server was told to leave it open; stock clients may come, as of many examples."""
    meeting = Handshake(tcp, authenticator(TCP, stock=True), with_token(None))
    assert meeting.server.principal == "anonymous@127.0.0.1"
    with tcp_pair() as pair:
        stock = Handshake(pair, authenticator(TCP, stock=True), saying(STOCK))
        assert stock.server == AuthenticatedPeer(pair[1], "anonymous@127.0.0.1")


def come(keeper: Authenticator, token: str) -> Handshake:
    """One more client over TCP, with that token."""
    with tcp_pair() as pair:
        return Handshake(pair, keeper, with_token(token))


def test_too_many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones of that address are looked at later, right or wrong; others' are at once."""
    keeper = authenticator(TCP, TOKEN)
    said = {type(come(keeper, "wrong").client) for _ in range(20)}
    assert said == {AuthenticationFailed}
    for token in ("wrong", TOKEN):
        late = come(keeper, token)
        assert type(late.client) is type(late.server) is Busy
        assert 0 < late.client.retry_after_s <= 3.0
        assert "127.0.0.1" in str(late.client)
    monkeypatch.setattr(module, "rate_limit_key", lambda peer: "elsewhere")
    assert come(keeper, TOKEN).client["session"] == "s"


def test_users_of_this_machine_are_counted_apart(owner: Callable[[int | None], None]) -> None:
    """Wrong tokens of another user keep nobody else waiting."""
    keeper = Authenticator(TCP, lambda: accounts(TOKEN), os.getuid(), False, insecure=True)
    owner(4321)
    for _ in range(20):
        come(keeper, "wrong")
    assert type(come(keeper, TOKEN).client) is Busy
    owner(os.getuid())
    assert come(keeper, TOKEN).client["session"] == "s"


def test_wrong_tokens_are_remembered_at_all_listeners(runtime: Path) -> None:
    """Whoever has tried twenty at one finds no second chance at the next."""
    path = str(runtime / "token")
    write_token_file(path)
    options = ServerOptions(token_file=path, token_dir="none")
    authenticator_at = authenticator_factory(options, Accounts(options))
    first, second = (authenticator_at(Address.tcp("127.0.0.1", port)) for port in (1, 2))
    assert {type(come(first, "wrong").client) for _ in range(20)} == {AuthenticationFailed}
    assert type(come(second, "wrong").client) is Busy


def test_accounts_come_and_go_while_the_server_runs() -> None:
    """They are asked for when somebody comes."""
    known = [Account.named("alice", "a"), Account.named("bob", "b")]
    keeper = Authenticator(TCP, lambda: known, os.getuid(), False)
    assert come(keeper, "b").server.principal == "account:bob"
    del known[1]
    assert type(come(keeper, "b").client) is AuthenticationFailed


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
    said = Handshake(tcp, keeper, with_token(TOKEN, insecure=client))
    assert isinstance(said.server, AuthenticatedPeer) is (client and server)


# does it speak our language? ----------------------------------------------------------------------


def test_a_stock_client_may_come_over_a_unix_socket(unix: Pair) -> None:
    """What it sent is still there to be read."""
    meeting = Handshake(unix, authenticator(UNIX), saying(STOCK))
    assert meeting.server == AuthenticatedPeer(unix[1], f"uid:{os.getuid()}")
    assert unix[1].recv(100) == STOCK


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


# is it quick? -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "said"),
    [
        *(("tcp", said) for said in (b"", MAGIC, MAGIC + b"\x00\x20{")),
        ("unix", MAGIC),
        ("another user", b""),
        ("tls", b"\x16\x03\x01\x02"),
    ],
)
def test_a_slow_peer_is_not_waited_for(
    over: str, said: bytes, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It would keep a thread for ever; a stock client of ours speaks when it has something to."""
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    keeper = secured() if over == "tls" else authenticator(TCP, TOKEN)
    if over in {"unix", "another user"}:
        keeper = authenticator(UNIX, uid=os.getuid() if over == "unix" else 1234)
    if over == "another user":
        monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    pair = request.getfixturevalue("tcp" if over in {"tcp", "tls"} else "unix")
    assert isinstance(Handshake(pair, keeper, saying(said, leave=False)).server, TimeoutError)


def test_a_trickling_peer_is_not_waited_for(tcp: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake, however many bytes come in it."""
    monkeypatch.setattr(module, "GREETING_S", 0.3)
    over = threading.Event()

    def trickle(sock: socket.socket) -> None:
        sock.sendall(MAGIC + b"\x0f\xff")
        while not over.wait(0.02):
            sock.sendall(b" ")

    thread = start(trickle, tcp[0])
    try:
        with pytest.raises(TimeoutError):
            authenticator(TCP, TOKEN).admit(tcp[1])
    finally:
        over.set()
    thread.join(PATIENCE_S)


def test_a_silent_peer_is_waited_for_two_seconds(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then told to come again, in case that it is one of ours on a busy machine."""
    monkeypatch.setattr(module, "FIRST_BYTES_S", 0.05)

    def late(sock: socket.socket) -> Any:
        assert sock.recv(1, socket.MSG_PEEK)
        return with_token(TOKEN)(sock)

    meeting = Handshake(tcp, authenticator(TCP, TOKEN), late)
    assert isinstance(meeting.server, TimeoutError)
    assert type(meeting.client) is Busy


def test_a_silent_peer_gives_its_place_to_one_that_speaks(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when both come from the same address; it is told so."""
    monkeypatch.setattr(handshake_slots, "MAX_HANDSHAKES", 1)
    keeper = authenticator(TCP, TOKEN)
    with tcp_pair() as (silent, accepted):
        waiting = start(pytest.raises, Busy, keeper.admit, accepted)
        until(lambda: keeper._handshake_slots._peers)
        assert Handshake(tcp, keeper, with_token(TOKEN)).client["session"] == "s"
        join([waiting])
        with pytest.raises(Busy):
            with_token(TOKEN)(silent)


def test_a_unix_socket_has_room_for_any_number(unix: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all the same user's."""
    monkeypatch.setattr(handshake_slots, "MAX_HANDSHAKES", 0)
    assert Handshake(unix, authenticator(UNIX), with_token(None)).client["session"] == "s"


# TLS ----------------------------------------------------------------------------------------------


def test_a_client_comes_over_tls(tcp: Pair) -> None:
    """With the token all the same; the rest is spoken over TLS."""
    meeting = Handshake(tcp, secured(), tls_token(TOKEN))
    assert isinstance(meeting.server.stream, TlsSocket)
    assert meeting.server.principal == "token"
    assert meeting.client["session"] == "s"


@pytest.mark.slow
def test_a_peer_that_says_nothing_within_tls_is_told_within_it(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert in plain text is no message to an end that has keys."""
    monkeypatch.setattr(module, "GREETING_S", 2.0)
    meeting = Handshake(tcp, secured(), over_tls(lambda line: line.recv(4096)))
    assert isinstance(meeting.server, TimeoutError)
    assert json.loads(meeting.client[2:])["error"] == "Busy"


# as the options say -------------------------------------------------------------------------------


def test_the_token_guards_tcp_and_not_the_unix_socket(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """Whose directory is the lock."""
    path = str(runtime / "token")
    token = write_token_file(path)
    in_process_server = open_in_process_server(token_file=path)
    for address, given in ((in_process_server.unix, None), (in_process_server.tcp, token)):
        with jaxd.connect(address, token=given) as client:
            assert client.statistics().connections == 1
    with pytest.raises(AuthenticationFailed):
        jaxd.connect(in_process_server.tcp, token="wrong-token-for-tests-only").statistics()


@pytest.mark.parametrize("guests", [(), (4321,)])
def test_the_options_say_who_else_may_come(
    guests: tuple[int, ...], runtime: Path, unix: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a Unix socket another user, where the server was told so."""
    monkeypatch.setattr(module, "peer_uid", lambda sock: 4321)
    options = ServerOptions(allow_uids=guests, token_dir="none")
    keeper = authenticator_factory(options, Accounts(options))(Address.unix(f"{runtime}/s.sock"))
    came = Handshake(unix, keeper, with_token(None)).server
    assert isinstance(came, AuthenticatedPeer if guests else AuthenticationFailed)


def test_an_open_loopback_is_reached_by_those_who_say_so(
    runtime: Path, open_in_process_server: Callable[..., InProcessServer]
) -> None:
    """As it asks for no proof, the address has to say that none is expected."""
    in_process_server = open_in_process_server(
        allow_unauthenticated_loopback=True, token_dir="none"
    )
    with jaxd.connect(f"{in_process_server.tcp}?insecure=1") as client:
        assert client.statistics().connections == 1
    with pytest.raises(AuthenticationFailed, match=r"no proof.*\?insecure=1"):
        jaxd.connect(in_process_server.tcp)
