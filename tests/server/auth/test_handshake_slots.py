from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jaxd_protocol.errors import AuthenticationFailed, Busy
from jaxd_server.auth.handshake_slots import HandshakeSlots, UnauthenticatedPeer, refuse_busy

Pair = tuple[socket.socket, socket.socket]


class Room:
    """Peers that come to a listener with three places, at times of the test's choice."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 0.0
        self.strangers = HandshakeSlots(3, lambda: self.now)
        self._stack = stack
        self.ends: dict[str, socket.socket] = {}

    def come(
        self, name: str, place: str, *, said: int = 0, tls: bool = False
    ) -> UnauthenticatedPeer:
        """Somebody comes, and has said nothing (0), something (1) or whose client it is (2)."""
        ours, theirs = socket.socketpair()
        self.ends[name] = theirs
        for sock in (ours, theirs):
            sock.settimeout(30)
            self._stack.enter_context(sock)
        visit = self.strangers.acquire(ours, place, tls=tls)
        stranger = visit.__enter__()
        stranger.stage = said
        self.visits = [*getattr(self, "visits", []), visit]  # none ends by itself
        return stranger


@pytest.fixture
def room() -> Iterator[Room]:
    """With nobody in it."""
    with ExitStack() as stack:
        yield Room(stack)


def lost(*strangers: UnauthenticatedPeer) -> list[bool]:
    """Who has lost its place."""
    return [one.is_evicted for one in strangers]


def test_the_oldest_silent_one_goes_first(room: Room) -> None:
    """Not one that has said something, even if it came before."""
    speaks = room.come("a", "x", said=2)
    silent = [room.come(name, "x") for name in ("b", "c")]
    room.now = 1.0
    room.come("d", "x")
    assert lost(speaks, *silent) == [False, True, False]
    room.come("e", "x")
    assert lost(speaks, *silent) == [False, True, True]


def test_one_that_does_no_more_than_tls_counts_as_silent(room: Room) -> None:
    """It goes before one that has said who it is."""
    speaks = room.come("a", "x", said=2)
    shakes = [room.come(name, "x", said=1, tls=True) for name in ("b", "c")]
    room.now = 1.0
    room.come("d", "x")
    assert lost(speaks, *shakes) == [False, True, False]


def test_an_address_with_many_gives_one_up_for_another_address(room: Room) -> None:
    """At once, whatever those have said; who has one only keeps it."""
    alone = room.come("a", "x")
    many = [room.come(name, "y", said=2) for name in ("b", "c")]
    room.come("d", "z")
    assert lost(alone, *many) == [False, True, False]


def test_those_of_one_address_who_are_quick_are_not_in_each_others_way(room: Room) -> None:
    """The one too many is told to come again; who stalls for a second goes."""
    first = [room.come(name, "x", said=2) for name in "abc"]
    with pytest.raises(Busy) as caught:
        room.come("d", "x")
    assert caught.value.retry_after_s == 1.0
    assert not any(lost(*first))
    room.now = 1.0
    room.come("e", "x")
    assert lost(*first) == [True, False, False]


def test_who_has_left_makes_room(room: Room) -> None:
    """For anybody."""
    first = [room.come(name, "x", said=2) for name in "abc"]
    room.visits[0].__exit__(None, None, None)
    room.come("d", "x")
    assert not any(lost(*first))


def test_who_loses_its_place_reads_the_end_and_is_told(room: Room) -> None:
    """With when to come again; also who has proved itself too late: its connection is not whole."""
    strangers = [room.come(name, "x") for name in "abcd"]
    assert strangers[0].sock.recv(1) == b""
    with pytest.raises(Busy, match="others are faster"):
        room.visits[0].__exit__(EOFError, EOFError(), None)
    said = json.loads(room.ends["a"].recv(4096)[2:])
    assert (said["error"], said["retry_after_s"]) == ("Busy", 1.0)


def test_who_has_proved_itself_too_late_is_told_as_well(room: Room) -> None:
    """Its connection is not whole any more."""
    for name in "abcd":
        room.come(name, "x")
    with pytest.raises(Busy):
        room.visits[0].__exit__(None, None, None)


def test_what_was_said_already_is_not_said_again(room: Room) -> None:
    """A wrong token is one, also of somebody who has lost the place."""
    for name in "abcd":
        room.come(name, "x")
    error = AuthenticationFailed("wrong token.")
    assert not room.visits[0].__exit__(AuthenticationFailed, error, None)
    room.ends["a"].setblocking(False)
    with pytest.raises(BlockingIOError):
        room.ends["a"].recv(1)


def test_before_tls_is_there_an_alert_says_it() -> None:
    """In the record that TLS has for it; who has gone is not told, and that is no error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        refuse_busy(ours, None, Busy("later."))
        assert theirs.recv(100) == bytes.fromhex("15 0303 0002 02 50")
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        refuse_busy(ours, ours, Busy("later."))
