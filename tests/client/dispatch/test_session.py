"""One server, and the connection to it."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd.dispatch.session import Session
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    DeadlineExceeded,
    JaxdError,
    NoServer,
    ProtocolError,
    VersionMismatch,
)
from jaxd_protocol.network.addresses import Address
from tests.end_to_end.gates import in_thread
from tests.live_server import LiveServer
from tests.server.staging import until


@pytest.fixture
def session(live: LiveServer) -> Iterator[Session]:
    """Not connected so far."""
    session = Caller(Settings(server=Address.parse(live.unix))).session
    yield session
    session.close()


def test_no_thread_outlives_its_connection_or_its_session(session: Session) -> None:
    """A process may make clients again and again."""

    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "jaxd-drops"]

    others = threads()
    for _ in range(3):
        session.values().release_queue.start()
        session.connection().shut()
        session.id = None
        session.connection()  # of another session
        session.values().release_queue.start()
    assert not set(threads()) <= set(others)
    session.close()
    until(lambda: set(threads()) <= set(others))
    session.connection()
    assert not set(threads()) <= set(others)
    session.close()


def test_messages_about_another_session_are_of_no_use(session: Session) -> None:
    """Nobody is there to whom they mean anything, where nothing is made again."""
    session.settings = session.settings.replaced(snapshot_s=0.0)
    old = session.values()
    assert session.notify(old, "drop", b"")
    session.connection().shut()
    session.id = None
    session.connection()
    assert session.values() is not old
    assert not session.notify(old, "drop", b"")


def test_without_a_connection_nothing_is_told_and_none_is_made(session: Session) -> None:
    """It may be that the process ends."""
    values = session.values()
    session.close()
    assert session.notify(values, "drop", b"")
    assert not session.connected


def test_a_handshake_that_breaks_off_is_tried_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a server has answered before; else it may be none of ours."""
    connect, fails = Session._connect, [True]

    def breaks_off(self: Session, deadline: float | None) -> Any:
        if fails.pop():
            raise ProtocolError("it broke off") from EOFError()
        return connect(self, deadline)

    monkeypatch.setattr(Session, "_connect", breaks_off)
    with pytest.raises(ProtocolError):
        session.connection()
    fails[:] = [False]
    session.connection().shut()
    fails[:] = [False, True, True]
    assert session.connection().alive
    assert fails == []
    session.connection().shut()
    fails[:] = [True] * 1000
    with pytest.raises(NoServer, match="has answered before") as caught:
        session.current(deadline=time.monotonic() + 0.2)
    assert caught.value.may_repeat
    fails[:] = [False]
    assert session.connection().alive


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_tried_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it keeps the session, or the caller waits; then each call tries once."""
    connect, is_down, tried = Session._connect, threading.Event(), []
    said = io.StringIO()  # what is written while capsys reads is lost
    monkeypatch.setattr("sys.stderr", said)

    def may_be_down(self: Session, deadline: float | None) -> Any:
        if not is_down.is_set():
            return connect(self, deadline)
        tried.append(True)
        raise NoServer("refused. Start one.") from ConnectionRefusedError("refused")

    monkeypatch.setattr(Session, "_connect", may_be_down)
    is_down.set()
    with pytest.raises(NoServer):
        session.connection()  # the first connection
    assert tried == [True]
    is_down.clear()
    session.connection().shut()
    is_down.set()
    with pytest.raises(NoServer):
        session.current(deadline=time.monotonic() + 0.1)
    assert len(tried) > 2
    waiting = in_thread(session.connection)
    until(lambda: "waiting for the server" in said.getvalue())
    is_down.clear()
    assert waiting.result(30).alive
    assert "connected again" in said.getvalue()
    session.connection().shut()
    session._grace_s = 0.1
    is_down.set()
    with pytest.raises(NoServer):
        session.connection()
    tried.clear()
    with pytest.raises(NoServer):
        session.connection()
    assert tried == [True]


@pytest.fixture
def silent(runtime: Path) -> Iterator[socket.socket]:
    """Accepts connections, as far as a client can see, and says nothing."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{runtime}/silent.sock")
        listening.listen()
        yield listening


@pytest.mark.slow
def test_a_peer_that_says_a_little_takes_no_more_either(
    session: Session, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it says something: the time is that of all steps together."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    session.connection().shut()
    session.settings = session.settings.replaced(server=Address.unix(silent.getsockname()))
    is_over = threading.Event()

    def trickles() -> None:
        peer, _ = silent.accept()
        with peer, suppress(OSError):
            peer.sendall(b"\x0f\xff")  # the length of a long message
            while not is_over.wait(0.05):
                peer.sendall(b" ")

    talking = in_thread(trickles)
    with pytest.raises(DeadlineExceeded):
        session.current(deadline=time.monotonic() + 0.5)
    is_over.set()
    talking.result(30)


NO_SERVER = ProtocolError("the peer's greeting is not JSON.")
NO_SERVER.__cause__ = ValueError("no JSON")


@pytest.mark.parametrize(
    "error", [AuthenticationFailed("wrong."), VersionMismatch("old."), NO_SERVER], ids=type
)
def test_a_refusal_for_good_is_no_outage(
    session: Session, monkeypatch: pytest.MonkeyPatch, error: JaxdError
) -> None:
    """A token does not become the right one again; something else may have the address now."""
    session.connection().shut()
    tried = []

    def refuses(self: Session, deadline: float | None) -> Any:
        tried.append(True)
        raise error

    monkeypatch.setattr(Session, "_connect", refuses)
    with pytest.raises(type(error), match=str(error)):
        session.connection()
    assert tried == [True]


def test_a_server_without_room_is_asked_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it says, until it has some or the caller's time is over."""
    connect, left = Session._connect, [2]

    def is_busy(self: Session, deadline: float | None) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Busy("full.", 0.01)
        return connect(self, deadline)

    monkeypatch.setattr(Session, "_connect", is_busy)
    assert session.connection().alive
    session.connection().shut()
    left[0] = 10**9
    with pytest.raises(Busy, match="full"):
        session.current(deadline=time.monotonic() + 0.05)


def test_closing_ends_the_connections_that_were_left_as_well(session: Session) -> None:
    """Nobody would read them any more."""
    left = session.connection()
    session.drain(left)
    assert session.connection() is not left
    session.close()
    assert not left.alive
