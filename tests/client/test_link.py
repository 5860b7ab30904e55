"""One server, and the connection to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd.caller import Caller
from jaxd.link import Link
from jaxd.settings import Settings
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import Busy, NoServer, ProtocolError
from tests.end_to_end.gates import wait_until
from tests.live_server import LiveServer


@pytest.fixture
def link(live: LiveServer) -> Iterator[Link]:
    """Not connected so far."""
    link = Caller(Settings(server=Address.parse(live.unix)))
    yield link
    link.close()


def test_values_outlive_a_connection(link: Link) -> None:
    """The session is the same."""
    values = link.values()
    link.connection().shut()
    assert link.values() is values
    assert link.connection().alive
    assert link.values() is values


def test_no_thread_outlives_its_connection_or_its_session(link: Link) -> None:
    """A process may make clients again and again."""

    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "jaxd-drops"]

    others = threads()
    for _ in range(3):
        link.values().drops.start()
        link.connection().shut()
        link.session = None
        link.connection()  # of another session
        link.values().drops.start()
    assert not set(threads()) <= set(others)
    link.close()
    wait_until(lambda: set(threads()) <= set(others))
    link.connection()
    assert not set(threads()) <= set(others)
    link.close()


def test_messages_about_another_session_are_of_no_use(link: Link) -> None:
    """Nobody is there to whom they mean anything."""
    old = link.values()
    assert link.tell(old, "drop", b"")
    link.connection().shut()
    link.session = None
    link.connection()
    assert link.values() is not old
    assert not link.tell(old, "drop", b"")


def test_without_a_connection_nothing_is_told_and_none_is_made(link: Link) -> None:
    """It may be that the process ends."""
    values = link.values()
    link.close()
    assert link.tell(values, "drop", b"")
    assert not link.connected


def test_a_handshake_that_breaks_off_is_tried_again(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a server has answered before; else it may be none of ours."""
    connect, fails = Link._connect, [True]

    def breaks_off(self: Link) -> Any:
        if fails.pop():
            raise ProtocolError("it broke off") from EOFError()
        return connect(self)

    monkeypatch.setattr(Link, "_connect", breaks_off)
    with pytest.raises(ProtocolError):
        link.connection()
    fails[:] = [False]
    link.connection().shut()
    fails[:] = [False, True, True]
    assert link.connection().alive
    assert fails == []
    link.connection().shut()
    fails[:] = [True] * 3
    with pytest.raises(NoServer, match="has answered before") as caught:
        link.connection()
    assert caught.value.may_repeat


def test_a_server_without_room_is_asked_again(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it says, until it has some or the caller's time is over."""
    connect, left = Link._connect, [2]

    def is_busy(self: Link) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Busy("full.", 0.01)
        return connect(self)

    monkeypatch.setattr(Link, "_connect", is_busy)
    assert link.connection().alive
    link.connection().shut()
    left[0] = 10**9
    with pytest.raises(Busy, match="full"):
        link.connection(deadline=time.monotonic() + 0.05)


def test_what_is_no_server_is_said_to_be_none(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one has answered before: something else has its address now."""
    link.connection().shut()

    def another(self: Link) -> Any:
        raise ProtocolError("the peer's greeting is not JSON.") from ValueError("no JSON")

    monkeypatch.setattr(Link, "_connect", another)
    with pytest.raises(ProtocolError, match="not JSON"):
        link.connection()


def test_closing_ends_the_connections_that_were_left_as_well(link: Link) -> None:
    """Nobody would read them any more."""
    left = link.connection()
    link.leave(left)
    assert link.connection() is not left
    link.close()
    assert not left.alive
