"""What members of a pool ask each other: over real TLS, each a listener of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import NoServer, ProtocolError, ValueDeleted
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import finish_handshake
from jaxd_protocol.network.pool_routing import ranked
from jaxd_protocol.network.tokens import Seal
from jaxd_protocol.wire import stream_over
from jaxd_server.auth.acceptor import Acceptor
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, authenticator_factory
from jaxd_server.auth.listeners import open_listeners
from jaxd_server.auth.tls_setup import connection_hints, prepare_own_certificate
from jaxd_server.cache import peers as peers_module
from jaxd_server.cache import record_file
from jaxd_server.cache.directory import Directory, make_trusted
from jaxd_server.cache.peers import BuildRegister, Members, PeerLinks, Peers, peer_store
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.store import Store
from jaxd_server.cache.writer import Troubles
from jaxd_server.config.options import ServerOptions
from jaxd_server.rpc.services import peers as peer_service
from jaxd_server.rpc.services.peers import PeerService
from tests.end_to_end.passing_on import Stalling
from tests.live_server import TOKEN

KEY = "a-key-of-a-pool-for-tests-only"
TARGET = "0123456789abcdef"
NAME = b"n" * 16
RECORD = Record(("content",), b"payload" * 100)


class Member(Acceptor):
    """A member: its store, and a listener that answers the others; `close` it.

    Attributes:
        store: what it has, and what others have.
        service: answers the others.
    """

    def __init__(self, folder: Path, name: str, target: str, key: str, stack: ExitStack) -> None:
        self.members = Members(name)
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(TOKEN)
        certificate = prepare_own_certificate()
        options = ServerOptions(
            listen=(Address.tls("127.0.0.1", 0),),
            token_file=str(token_file),
            token_dir=str(folder / "tokens"),
            tls_cert=certificate,
            tls_key=certificate,
        )
        (listener,) = stack.enter_context(open_listeners(options.listen))
        (line,) = connection_hints(options, [listener])
        self.address = line.split("'")[1]
        seal = Seal(key)
        links = PeerLinks(lambda: self.members, seal, lambda: TOKEN)
        self.peers = Peers(links, BuildRegister(), seal, key)
        directory = Directory(make_trusted(str(folder / f"cache-{name}")), target)
        directory.make()
        shared = peer_store(self.peers, target, {})
        self.store = Store(directory, 1 << 30, Troubles(), {}, 0, shared)
        stack.callback(links.close)
        stack.callback(self.store.close)
        cache: Any = SimpleNamespace(store=self.store)
        self.service = PeerService(self.peers, cache)
        accounts = Accounts(options)
        authenticator = authenticator_factory(options, accounts)(listener.address)
        connected = ConnectedAccounts(accounts)
        super().__init__(listener.socket.dup(), listener.address, authenticator, 100, connected)
        self.start_in_thread()
        stack.callback(self.close)

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        finish_handshake(admitted.stream, {}, admitted.proof, {"auth": "none"})
        self.service.serve(stream_over(admitted.stream))

    def keep(self, record: Record = RECORD) -> None:
        """Has a program; returns when its keepers know that."""
        self.store.write("programs", NAME, record.content, record.payload)
        assert self.store.flush(30)


@pytest.fixture
def pool(runtime: Path) -> Iterator[Callable[..., list[Member]]]:
    """Makes members that know each other."""
    with ExitStack() as stack:

        def make(count: int, *, targets: Mapping[int, str] = {}, key: str = KEY) -> list[Member]:
            made = [
                Member(runtime, f"m{i}", targets.get(i, TARGET), key, stack) for i in range(count)
            ]
            known = {each.members.own: (each.address,) for each in made}
            for each in made:
                each.members = Members(each.members.own, known)
            return made

        yield make


def keepers_first(made: list[Member]) -> list[Member]:
    """The members in the order in which they keep what is known of the program."""
    label = made[0].store.label("programs", NAME)
    by_name = {each.members.own: each for each in made}
    return [by_name[name] for name in ranked(label.encode(), list(by_name))]


def test_a_program_is_found_wherever_it_is(pool: Callable[..., list[Member]]) -> None:
    """Two members at most know where; so many are asked, and the one that has it."""
    *others, builder = keepers_first(pool(6))
    assert all(each.store.read("programs", NAME) is None for each in others)
    builder.keep()
    for each in others:
        before = each.peers.links.asked
        assert each.store.read("programs", NAME) == RECORD
        assert each.peers.links.asked - before <= 3


def test_only_the_header_travels_where_no_more_is_asked_for(
    pool: Callable[..., list[Member]],
) -> None:
    """Such as whether there is one."""
    first, _, third = keepers_first(pool(3))
    first.keep()
    large = Record(("content",), os.urandom(1 << 20))
    first.keep(large)
    shared: Any = third.store.shared
    found = shared._files._asked_for(first.members.own, "programs", NAME, payload=False)
    assert found.content["size"] > len(large.payload) > 100 * len(found.buffers[0])
    assert third.store.has("programs", NAME)
    assert third.store.read("programs", NAME) == large


def test_a_program_is_not_packed_again_for_others(
    pool: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its header alone: a large one would take longer than others wait."""
    first, _, third = keepers_first(pool(3))
    large = Record(("content",), bytes(range(256)) * 4096)
    first.keep(large)
    shared: Any = third.store.shared
    with monkeypatch.context() as patch:
        patch.setattr(record_file, "_packed", lambda _: pytest.fail("packed"))
        head = shared._files._asked_for(first.members.own, "programs", NAME, payload=False)
        whole = shared._files._asked_for(first.members.own, "programs", NAME, payload=True)
    assert head.content == whole.content
    assert bytes(whole.buffers[0]).startswith(bytes(head.buffers[0]))
    assert whole.content["size"] == len(whole.buffers[0]) < len(large.payload)
    assert third.store.read("programs", NAME) == large


def test_a_program_for_another_target_is_not_found(pool: Callable[..., list[Member]]) -> None:
    """Such as that of another kind of processor."""
    made = pool(2, targets={1: "fedcba9876543210"})
    made[0].keep()
    assert made[1].store.read("programs", NAME) is None
    answer = made[1].peers.links.ask(
        "m0", ask="read", kind="programs", name=NAME.hex(), target="f" * 16, payload=True
    )
    assert not answer.buffers


@pytest.mark.parametrize("place", [30, -1], ids=["header", "payload"])
def test_a_poisoned_entry_is_refused(
    pool: Callable[..., list[Member]],
    place: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever of it was changed; the next member that has it is asked."""
    first, second, third = keepers_first(pool(3))
    first.keep()
    second.keep()
    honest = first.service._answers["read"]

    def poisoned(asked: Mapping[str, Any]) -> Any:
        content, (data,) = honest(asked)
        changed = bytearray(data)
        changed[place] ^= 1
        return content, (memoryview(changed),)

    monkeypatch.setitem(first.service._answers, "read", poisoned)
    assert third.store.read("programs", NAME) == RECORD
    assert "store_entry_refused" in caplog.text


def test_what_is_signed_with_another_key_is_refused(
    pool: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is whole."""
    from jaxd_server.cache.shared_store import signing

    first, second = keepers_first(pool(2))
    first.keep()
    monkeypatch.setattr(first.service, "_sign", signing("the-key-of-another-pool-for-tests"))
    assert second.store.read("programs", NAME) is None


def test_who_has_no_key_of_the_pool_learns_nothing(pool: Callable[..., list[Member]]) -> None:
    """A client has the token, and with it all that is needed to connect."""
    first, second = keepers_first(pool(2))
    first.keep()
    stranger = PeerLinks(
        lambda: second.members, Seal("the-key-of-another-pool-for-tests"), lambda: TOKEN
    )
    with pytest.raises(OSError, match="connection"):
        stranger.ask(first.members.own, ask="note", label="x", member="m9")
    assert not first.peers.register.place("x")


def test_members_that_do_not_answer_are_asked_once(
    pool: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And cost their bound once: then they are left alone for a while."""
    monkeypatch.setattr(peers_module, "_ANSWER_S", 0.2)
    monkeypatch.setattr(peers_module, "DATA_S", 0.2)
    first, second, third = keepers_first(pool(3))
    third.keep()
    answered = threading.Event()
    monkeypatch.setitem(
        first.service._answers,
        "read",
        lambda _: ({"at": str(answered.wait(30))}, ()),
    )
    assert second.store.read("programs", NAME) == RECORD
    assert second.peers.links.is_away(first.members.own)
    before = second.peers.links.asked
    assert second.store.read_other("programs", NAME) == RECORD
    assert second.peers.links.asked - before == 1
    answered.set()


def test_a_member_that_stops_in_the_middle_costs_its_bound(
    pool: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives on, and nothing more comes; the rest of an answer may take longer."""
    monkeypatch.setattr(peers_module, "_ANSWER_S", 0.3)
    monkeypatch.setattr(peers_module, "DATA_S", 1000.0)  # the test ends before
    first, second, third = keepers_first(pool(3))
    large = Record(("content",), os.urandom(4 << 20))
    first.keep(large)
    third.keep(large)
    real = Address.parse(first.address)
    with Stalling(real.port) as stalled:
        address = str(real._replace(port=stalled.port))
        known = {**second.members.addresses, first.members.own: (address,)}
        second.members = Members(second.members.own, known)
        assert second.store.read("programs", NAME) in (None, large)
        assert second.peers.links.is_away(first.members.own)


def test_a_member_that_does_not_know_its_name_yet_is_asked_again(
    pool: Callable[..., list[Member]],
) -> None:
    """It has just started: it is not left alone for that, and says no more than so."""
    first, second = keepers_first(pool(2))
    members, first.members = first.members, Members()
    with pytest.raises(OSError, match="not know its own name yet"):
        second.peers.links.ask(members.own, ask="note", label="x", member="m9")
    first.members = members
    second.peers.links.ask(members.own, ask="note", label="x", member="m9")
    assert first.peers.register.place("x") == "m9"


def test_what_a_client_names_calls_no_member_away(pool: Callable[..., list[Member]]) -> None:
    """Neither a name nor a ticket that it has made up."""
    first, second = pool(2)
    for ticket in ("", "0" * 31, "0" * 33, "\ud800" * 32, "0" * (1 << 21)):
        with pytest.raises(ProtocolError, match="ticket"):
            first.service.look("m1", ticket)
    with pytest.raises(ValueDeleted, match="nothing is offered"):
        first.service.take("m1", "0" * 32)
    for number in range(3):
        with pytest.raises(NoServer, match="no member of that name"):
            first.service.take(f"x{number}", "0" * 32)
    assert not first.peers.links._away
    ticket = second.service.offer(b"looks", lambda: (b"looks", ()))
    assert first.service.look("m1", ticket) == b"looks"
    assert first.service.take("m1", ticket) == (b"looks", ())


def test_an_offer_is_good_once_and_for_a_while(
    pool: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has taken is forgotten with the next one."""
    first, second = pool(2)
    ticket = second.service.offer(b"looks", lambda: (b"looks", ()))
    first.service.take("m1", ticket)
    with pytest.raises(ValueDeleted):
        first.service.take("m1", ticket)
    monkeypatch.setattr(peer_service, "_OFFERED_S", -1.0)
    ticket = second.service.offer(b"looks", lambda: (b"looks", ()))
    with pytest.raises(ValueDeleted):
        first.service.look("m1", ticket)
    second.service.offer(b"looks", lambda: (b"looks", ()))
    assert len(second.service._offers) == 1


def test_connections_to_members_that_have_left_are_closed(
    pool: Callable[..., list[Member]],
) -> None:
    """With the next answer."""
    first, *others = pool(3)
    links = first.peers.links
    for each in others:
        links.ask(each.members.own, ask="note", label="x", member="m0")
    assert {str(each) for each in links._idle} == {each.address for each in others}
    del first.members.addresses["m1"]  # type: ignore[attr-defined]
    links.ask("m2", ask="note", label="x", member="m0")
    assert [str(each) for each in links._idle] == [others[1].address]


def test_a_lease_is_one_members_until_it_is_released(pool: Callable[..., list[Member]]) -> None:
    """Whoever waits learns who has it, and builds nothing when it is done."""
    made = pool(3)
    stores = [each.store.shared for each in made]
    told: list[str] = []
    is_there = threading.Event()

    def wait() -> None:
        with stores[1].lease(NAME, is_there.is_set, lambda it: told.append(it.host)) as lease:  # type: ignore[union-attr]
            assert lease is None

    with stores[0].lease(NAME, lambda: False, lambda _: None) as lease:  # type: ignore[union-attr]
        assert lease is not None
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not told:
            waiting.join(0.01)
        is_there.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert set(told) == {"m0"}
    with stores[2].lease(NAME, lambda: False, lambda _: None) as lease:  # type: ignore[union-attr]
        assert lease is not None
