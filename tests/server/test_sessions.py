from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jaxd_server.sessions import Sessions

if TYPE_CHECKING:
    import pytest


def test_a_new_client_gets_a_session_of_its_own() -> None:
    """With a name that cannot be guessed."""
    sessions = Sessions(60.0)
    first, second = sessions.enter(None, "uid:1"), sessions.enter(None, "uid:1")
    assert first is not second
    assert first.id != second.id
    assert len(bytes.fromhex(first.id)) == 16
    assert (len(sessions), sessions.connections) == (2, 2)


def test_a_client_that_comes_back_finds_its_session() -> None:
    """Also while an earlier connection of it is still open."""
    sessions = Sessions(60.0)
    session = sessions.enter(None, "uid:1")
    assert sessions.enter(session.id, "uid:1") is session
    assert session.connections == 2
    for _ in range(2):
        sessions.leave(session)
    assert sessions.connections == 0
    assert sessions.enter(session.id, "uid:1") is session


def test_nobody_enters_the_session_of_another_principal() -> None:
    """Knowing its name is not enough."""
    sessions = Sessions(60.0)
    session = sessions.enter(None, "uid:1")
    other = sessions.enter(session.id, "uid:2")
    assert other is not session
    assert other.principal == "uid:2"


def test_an_unknown_session_is_not_made_up() -> None:
    """A client of a restarted server gets a new one, with a name that the server chose."""
    session = Sessions(60.0).enter("deadbeef", "uid:1")
    assert session.id != "deadbeef"


def test_a_session_is_kept_for_a_while_after_its_last_connection() -> None:
    """The client may come back, and then finds everything as it was."""
    sessions = Sessions(60.0)
    sessions.leave(sessions.enter(None, "uid:1"))
    assert (len(sessions), sessions.connections) == (1, 0)


def test_a_session_is_forgotten_when_the_grace_is_over() -> None:
    """But never while it has a connection."""
    sessions = Sessions(-1.0)  # over as soon as it begins
    session = sessions.enter(None, "uid:1")
    assert len(sessions) == 1
    sessions.leave(session)
    assert len(sessions) == 0
    assert sessions.enter(session.id, "uid:1") is not session


def test_a_client_that_cannot_come_back_leaves_nothing() -> None:
    """A stock client does not know the name of its session."""
    sessions = Sessions(60.0)
    sessions.leave(sessions.enter(None, "uid:1"), for_good=True)
    assert len(sessions) == 0


def test_the_quiet_begins_when_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first one, at the start."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sessions = Sessions(60.0)
    session = sessions.enter(None, "uid:1")
    now = 130.0
    assert sessions.quiet_s == 30.0
    sessions.leave(session)
    assert sessions.quiet_s == 0.0
