"""The director of a pool with a fixed list of members: who may ask it, and what it tells."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from jaxd.connection.connect import probe
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectionLost,
    NotPermitted,
    ProtocolError,
)
from jaxd_protocol.messages.pool_view import (
    POOL_IN_WELCOME,
    POOL_ORDER,
    POOL_UNREACHABLE,
    POOL_VIEW,
    PoolMember,
)
from jaxd_protocol.network.addresses import Address, relay_greeting
from jaxd_protocol.network.certificates import client_context, fingerprint_of
from jaxd_server.pool import director as director_module
from tests.live_pool import LiveDirector, ViewClient
from tests.live_server import TOKEN
from tests.server.staging import until

PIN = "ab" * 32
M1 = PoolMember("m1", (f"tls://127.0.0.1:1#sha256={PIN}",), epoch=1, state="ready")
M2 = PoolMember("m2", (f"tls://127.0.0.1:2#sha256={PIN}",), epoch=1, state="ready")


@pytest.fixture
def director(runtime: Path) -> Iterator[LiveDirector]:
    """One with two members."""
    found = LiveDirector(runtime, M1, M2)
    yield found
    found.close()


@pytest.fixture
def client(director: LiveDirector) -> Iterator[ViewClient]:
    """A client of it over TLS."""
    found = ViewClient(director.tls)
    yield found
    found.close()


def test_a_client_gets_the_members(client: ViewClient) -> None:
    """Over TLS with the token; the welcome names the pool."""
    assert client.welcome[POOL_IN_WELCOME] == "lab"
    view = client.look(0.0)
    assert (view.pool, view.members) == ("lab", {"m1": M1, "m2": M2})


def test_a_wrong_token_is_refused(director: LiveDirector) -> None:
    """As by a server, and no member is told."""
    with pytest.raises(AuthenticationFailed, match="wrong token"):
        ViewClient(director.tls, "another-token-for-tests")


def test_a_wrong_pin_is_refused(director: LiveDirector) -> None:
    """The client ends the connection before it says anything."""
    with pytest.raises(AuthenticationFailed, match="another certificate"):
        ViewClient(director.tls._replace(pin=PIN))


def test_nothing_is_told_before_the_handshake(director: LiveDirector) -> None:
    """Who has the pin alone, and speaks no jaxd, is disconnected."""
    with (
        socket.create_connection(director.tls.place, 20) as sock,
        client_context(pinned=True).wrap_socket(sock) as line,
    ):
        assert fingerprint_of(line.getpeercert(binary_form=True) or b"") == director.tls.pin
        line.sendall(b"GET /pool_view HTTP/1.1\r\n\r\n")
        assert line.recv(1000) == b""


def test_a_change_ends_the_wait(
    director: LiveDirector, client: ViewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that waits is answered when a member changes, with that member alone."""
    monkeypatch.setattr(director_module, "MOST_WAIT_S", 1e5)  # or the end of the wait would do
    client.look(0.0)
    threading.Timer(0.1, director.table.show, [PoolMember("m3", epoch=1)]).start()
    before = client.view
    answer = client.ask(POOL_VIEW, before.sequence, client._source, 1e5)
    assert list(answer["change"]["members"]) == ["m3"]


def test_without_news_the_wait_ends_in_time(client: ViewClient) -> None:
    """The answer has no member, and the client knows as much as before."""
    before = client.look(0.0)
    assert client.look(0.05) == before


def test_each_client_gets_each_change(director: LiveDirector) -> None:
    """Also one that comes later, or was slow."""
    clients = [ViewClient(director.tls) for _ in range(3)]
    clients[0].look(0.0)
    director.table.remove("m1")
    clients[1].look(0.0)
    director.table.show(PoolMember("m3"))
    for each in clients:
        while set(each.look().members) != {"m2", "m3"}:
            pass
        each.close()


@pytest.mark.slow
def test_a_second_question_before_the_answer_is_refused(client: ViewClient) -> None:
    """One connection waits once; others questions are answered meanwhile."""
    client.look(0.0)
    known = client.view.sequence, client._source
    waiting = threading.Thread(target=client.ask, args=(POOL_VIEW, *known, 1.0))
    waiting.start()
    assert client.ask(POOL_UNREACHABLE, "m9", 1, "no route")["state"] == "lost"
    with pytest.raises(ProtocolError, match="second time"):
        client.ask(POOL_VIEW, *known, 1.0)
    waiting.join()


def test_a_director_that_is_replaced_begins_anew(runtime: Path, director: LiveDirector) -> None:
    """The next one answers at the same address with a whole view: its count is another one."""
    client = ViewClient(director.tls)
    known = client.look(0.0)
    waiting = threading.Event()

    def wait() -> None:
        with pytest.raises(ConnectionLost):
            client.look()
        waiting.set()

    thread = threading.Thread(target=wait)
    thread.start()
    director.close()
    thread.join()
    assert waiting.is_set()
    after = LiveDirector(runtime, M1, port=director.tls.port, epoch=2)
    try:
        assert after.tls == director.tls
        again = ViewClient(after.tls)
        assert again.welcome["epoch"] == 2
        again.view, again._source = known, client._source
        assert set(again.look(0.0).members) == {"m1"}
        again.close()
    finally:
        after.close()


@pytest.mark.slow
def test_a_revoked_account_is_disconnected(runtime: Path, director: LiveDirector) -> None:
    """Named tokens are those of servers."""
    from jaxd_protocol.network.accounts import add_account, remove_account

    _, token = add_account("alice", str(runtime / "tokens"))
    client = ViewClient(director.tls, token)
    client.look(0.0)
    remove_account("alice", str(runtime / "tokens"))
    with pytest.raises(ConnectionLost):
        client.look()


def test_what_a_server_is_asked_is_refused_with_advice(client: ViewClient) -> None:
    """Somebody has named the director as a server."""
    with pytest.raises(ConfigurationError, match="pool://"):
        client.ask("statistics")


def test_wrong_arguments_are_refused(client: ViewClient) -> None:
    """And the connection goes on."""
    with pytest.raises(ProtocolError, match="arguments"):
        client.ask(POOL_VIEW, "1", "", 0.0)
    assert client.look(0.0).members


def test_what_clients_claim_to_know_takes_no_memory(
    director: LiveDirector, client: ViewClient
) -> None:
    """One answer is kept for all that know the same, and a client may name any change."""
    source = client.ask(POOL_VIEW, 0, "", 0.0)["source"]
    for epoch in range(2, 100):
        director.table.show(replace(M2, epoch=epoch))
    until(lambda: director.director.told > 90)
    for known in range(90):
        client.ask(POOL_VIEW, known, source, 0.0)
    assert 0 < len(director.director._answers) <= 64
    with pytest.raises(ProtocolError, match="change"):
        client.ask(POOL_VIEW, -1, source, 0.0)


def test_orders_are_taken_over_the_unix_socket_alone(runtime: Path) -> None:
    """A token lets nobody scale or end a pool."""
    orders: list[str] = []

    def obey(order: str, content: object) -> dict[str, object]:
        orders.append(order)
        return {"got": content}

    director = LiveDirector(runtime, M1, obey=obey)
    there, here = ViewClient(director.tls), ViewClient(director.unix)
    with pytest.raises(NotPermitted):
        there.ask(POOL_ORDER, "down", "{}")
    assert here.ask(POOL_ORDER, "scale", json.dumps({"count": 2})) == {"got": {"count": 2}}
    assert orders == ["scale"]
    there.close()
    here.close()
    director.close()


# members out of reach -----------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Stands for the TLS port of a member: sends back what it gets."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            with sock:
                while data := sock.recv(1000):
                    sock.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_a_member_out_of_reach_is_relayed(
    director: LiveDirector, client: ViewClient, echo: tuple[str, int]
) -> None:
    """The address has the member's own pin, and what is sent arrives as it is."""
    host, port = echo
    member = PoolMember("m3", (f"tls://{host}:{port}#sha256={PIN}",), epoch=1, state="ready")
    director.table.show(member)
    answer = client.ask(POOL_UNREACHABLE, "m3", 1, "no route")
    address = Address.parse(answer["address"])
    assert (answer["state"], address.pin) == ("ready", PIN)
    assert address.port not in (port, director.tls.port)
    with socket.create_connection(address.place, 20) as sock:
        sock.sendall(relay_greeting(answer["ticket"]) + b"hello")
        assert sock.recv(1000) == b"hello"
    again = client.ask(POOL_UNREACHABLE, "m3", 1, "no route")
    assert again == answer


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\nHost: somebody.example.org\r\n\r\n", relay_greeting("0" * 32), b""],
    ids=["a stranger", "a wrong ticket", "nothing"],
)
def test_a_member_sees_no_byte_of_who_has_no_ticket(
    director: LiveDirector, client: ViewClient, greeting: bytes
) -> None:
    """It would count wrong tokens against the director, and refuse all that are relayed."""
    with socket.create_server(("127.0.0.1", 0)) as member:
        place = f"tls://127.0.0.1:{member.getsockname()[1]}#sha256={PIN}"
        director.table.show(PoolMember("m3", (place,), epoch=1, state="ready"))
        answer = client.ask(POOL_UNREACHABLE, "m3", 1, "no route")
        address = Address.parse(answer["address"])
        with (
            socket.create_connection(address.place, 20) as sock,
            suppress(ConnectionResetError, BrokenPipeError),
        ):
            sock.sendall(greeting)
            with suppress(OSError):  # not connected: it has closed the connection already
                sock.shutdown(socket.SHUT_WR)
            assert not sock.recv(1000)
        member.setblocking(False)
        with pytest.raises(BlockingIOError):
            member.accept()


def test_a_ticket_is_for_one_member_and_ends_with_its_account(runtime: Path) -> None:
    """Who has been revoked is not relayed any more."""
    from jaxd_protocol.network.accounts import add_account, remove_account

    with socket.create_server(("127.0.0.1", 0)) as member:
        place = f"tls://127.0.0.1:{member.getsockname()[1]}#sha256={PIN}"
        rows = [PoolMember(name, (place,), epoch=1, state="ready") for name in ("m3", "m4")]
        director = LiveDirector(runtime, *rows)
        _, token = add_account("alice", str(runtime / "tokens"))
        alice = ViewClient(director.tls, token)
        tickets = {
            name: alice.ask(POOL_UNREACHABLE, name, 1, "no route")["ticket"]
            for name in ("m3", "m4")
        }
        admits = director.director.relays._admits
        assert tickets["m3"] != tickets["m4"]
        assert admits("m3", relay_greeting(tickets["m3"]))
        assert not admits("m3", relay_greeting(tickets["m4"]))
        remove_account("alice", str(runtime / "tokens"))
        director.director._accounts.now()
        assert not admits("m3", relay_greeting(tickets["m3"]))
        alice.close()
        director.close()


@pytest.mark.parametrize(
    "member",
    [
        None,
        PoolMember("m3", (f"tls://127.0.0.1:1#sha256={PIN}",), state="lost"),
        PoolMember("m3", ("unix:///nowhere",), state="ready"),
    ],
    ids=["unknown", "lost", "without TLS"],
)
def test_where_there_is_nothing_to_relay_to_the_address_is_empty(
    director: LiveDirector, client: ViewClient, member: PoolMember | None
) -> None:
    """The client learns how the director sees the member all the same."""
    if member is not None:
        director.table.show(member)
    answer = client.ask(POOL_UNREACHABLE, "m3", 1, "no route")
    assert answer == {"state": "lost" if member is None else member.state, "address": ""}


def test_the_relay_of_a_real_server_is_as_good_as_its_own_port(
    director: LiveDirector, client: ViewClient
) -> None:
    """The handshake of a server, certificate included, succeeds through the director."""
    own = PoolMember("m3", (str(director.tls),), epoch=1, state="ready")
    director.table.show(own)
    answer = client.ask(POOL_UNREACHABLE, "m3", 1, "no route")
    address = Address.parse(answer["address"])._replace(ticket=answer["ticket"])
    welcome = probe(address, Settings(server=address, token=TOKEN))
    assert welcome[POOL_IN_WELCOME] == "lab"
