from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.pytree import Leaf
from jaxd_server.execution.call import Finish
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.rpc.sessions import Session, Sessions
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import Value
from tests.server.staging import PATIENCE_S, until


def test_a_new_client_gets_a_session_of_its_own() -> None:
    """With a name that cannot be guessed."""
    sessions = Sessions(60.0)
    first, second = sessions.open(None, "uid:1"), sessions.open(None, "uid:1")
    assert first is not second
    assert first.id != second.id
    assert len(bytes.fromhex(first.id)) == 16
    assert (len(sessions), sessions.connections) == (2, 2)


def test_a_client_that_comes_back_finds_its_session() -> None:
    """Also while an earlier connection of it is still open."""
    sessions = Sessions(60.0)
    session = sessions.open(None, "uid:1")
    assert sessions.open(session.id, "uid:1") is session
    assert session.connections == 2
    for _ in range(2):
        sessions.close(session)
    assert sessions.connections == 0
    assert sessions.open(session.id, "uid:1") is session


def test_a_session_has_the_device_that_is_wanted_or_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps it until its client wants another one."""
    devices = [SimpleNamespace(id=n, device_kind="H200", memory_stats=_full) for n in range(3)]
    monkeypatch.setattr("jax.devices", lambda: devices)
    sessions = Sessions(60.0, devices=Devices())
    first, second = sessions.open(None, "uid:1"), sessions.open(None, "uid:1", 0)
    assert (first.device, second.device) == (0, 0)
    third = sessions.open(None, "uid:1")
    assert third.device == 1
    sessions.close(third)
    assert sessions.open(None, "uid:1").device == 2
    assert sessions.open(third.id, "uid:1").device == 1
    assert sessions.open(third.id, "uid:1", 2).device == 2
    with pytest.raises(ConfigurationError, match="3 devices"):
        sessions.open(None, "uid:1", 3)
    assert sessions.connections == 5


def _full() -> dict[str, int]:
    return {"bytes_in_use": 7}


def test_what_goes_wrong_at_the_end_of_a_session_is_no_matter_of_who_comes_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is their thread that ends the session; the log has the traceback."""
    clock = Clock()
    sessions = Sessions(60.0, clock=clock)
    left = sessions.open(None, "uid:1")
    sessions.close(left)

    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    left.call_queue = SimpleNamespace(then=fails)  # type: ignore[assignment]
    clock.now += 61
    assert sessions.open(None, "uid:2").connections == 1
    (line,) = [each for each in caplog.records if each.getMessage() == "session_not_ended"]
    assert line.exc_info is not None


def test_nobody_enters_the_session_of_another_principal() -> None:
    """Knowing its name is not enough."""
    sessions = Sessions(60.0)
    session = sessions.open(None, "uid:1")
    other = sessions.open(session.id, "uid:2")
    assert other is not session
    assert other.principal == "uid:2"


def test_an_unknown_session_is_not_made_up() -> None:
    """A client of a restarted server gets a new one, with a name that the server chose."""
    session = Sessions(60.0).open("deadbeef", "uid:1")
    assert session.id != "deadbeef"


def test_a_session_is_kept_for_a_while_after_its_last_connection() -> None:
    """The client may come back, and then finds everything as it was."""
    sessions = Sessions(60.0)
    sessions.close(sessions.open(None, "uid:1"))
    assert (len(sessions), sessions.connections) == (1, 0)


def test_a_session_is_forgotten_when_the_grace_is_over() -> None:
    """But never while it has a connection."""
    sessions = Sessions(-1.0)  # over as soon as it begins
    session = sessions.open(None, "uid:1")
    assert len(sessions) == 1
    sessions.close(session)
    assert len(sessions) == 0
    assert sessions.open(session.id, "uid:1") is not session


def test_a_client_that_cannot_come_back_leaves_nothing() -> None:
    """A stock client does not know the name of its session."""
    sessions = Sessions(60.0)
    sessions.close(sessions.open(None, "uid:1"), for_good=True)
    assert len(sessions) == 0


def test_a_client_whose_process_is_gone_leaves_nothing() -> None:
    """Unless its session has another connection."""
    sessions = Sessions(60.0)
    session = sessions.open(None, "uid:1")
    sessions.end_if_left(session)
    assert len(sessions) == 1
    sessions.close(session)
    assert len(sessions) == 1
    sessions.end_if_left(session)
    assert len(sessions) == 0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Left:
    """A call that was under way when its connection ended."""

    def __init__(self, phase: str = "building", *, is_ordered: bool = False) -> None:
        self.phase = phase
        self.is_ordered = is_ordered
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancel_unless_running(self) -> None:
        self.is_cancelled = self.is_cancelled or self.phase != "running"


def test_when_nobody_can_come_back_what_has_not_begun_is_given_up() -> None:
    """At once, whatever it works on; and when a connection ends later."""
    sessions = Sessions(60.0)
    calls = [Left(), Left("running"), Left(is_ordered=True)]
    early, late = sessions.open(None, "uid:1"), sessions.open(None, "uid:1")
    of_late = Left()
    early.unanswered.add(calls, 0.0)  # type: ignore[arg-type]
    late.unanswered.add([of_late], 0.0)  # type: ignore[list-item]
    sessions.close(early)
    assert not any(call.is_cancelled for call in calls)
    sessions.drain()
    assert [call.is_cancelled for call in calls] == [True, False, True]
    assert not of_late.is_cancelled
    sessions.close(late)
    assert of_late.is_cancelled


def test_calls_that_a_client_does_not_repeat_are_given_up() -> None:
    """Soon after it is back, or when its session is over; but for what runs, or can be answered."""
    clock = Clock()
    sessions = Sessions(60.0, clock=clock)
    session = sessions.open(None, "uid:1")
    plain, running, on_values = calls = [Left(), Left("running"), Left(is_ordered=True)]
    session.unanswered.add(calls, clock.now)  # type: ignore[arg-type]
    sessions.close(session)
    clock.now += 30
    sessions.poll()
    assert sessions.open(session.id, "uid:1") is session
    clock.now += 2
    sessions.poll()
    assert not plain.is_cancelled
    clock.now += 2
    sessions.poll()
    assert [call.is_cancelled for call in calls] == [True, False, False]
    sessions.close(session)
    clock.now += 61
    sessions.poll()
    assert running.is_cancelled
    assert on_values.is_cancelled


def test_the_quiet_begins_when_a_connection_ends() -> None:
    """Before the first one, at the start."""
    clock = Clock()
    sessions = Sessions(60.0, clock=clock)
    session = sessions.open(None, "uid:1")
    clock.now = 130.0
    assert sessions.quiet_s == 30.0
    sessions.close(session)
    assert sessions.quiet_s == 0.0


def with_values(values: ValueStore, session: Session, *ids: int) -> Session:
    """The session, which holds one byte under each of these numbers."""
    leaf = Leaf("A", "uint8", (1,))
    values.add(session.values, {number: Value(None, leaf, 1, "f") for number in ids})
    return session


def test_the_values_of_a_session_go_when_its_grace_is_over() -> None:
    """And not before; those of others stay."""
    clock, values = Clock(), ValueStore()
    sessions = Sessions(60.0, values, clock)
    gone = with_values(values, sessions.open(None, "uid:1"), 1, 2)
    with_values(values, sessions.open(None, "uid:1"), 1)
    clock.now += 100
    sessions.poll()
    assert len(values) == 3  # it has a connection
    sessions.close(gone)
    clock.now += 60
    sessions.poll()
    assert len(values) == 3
    clock.now += 0.1
    sessions.poll()
    assert (len(values), len(sessions)) == (1, 1)
    assert gone.values.ended


def test_who_comes_back_in_time_finds_its_values() -> None:
    """Also when that takes several connections, of which an old one ends late."""
    clock, values = Clock(), ValueStore()
    sessions = Sessions(60.0, values, clock)
    session = with_values(values, sessions.open(None, "uid:1"), 1)
    clock.now += 50
    assert sessions.open(session.id, "uid:1") is session
    sessions.close(session)
    clock.now += 1000
    sessions.poll()
    assert len(values) == 1
    sessions.close(session)
    clock.now += 59
    assert sessions.open(session.id, "uid:1") is session
    assert session.values.get(1).nbytes == 1


def test_who_comes_back_too_late_gets_a_session_without_values() -> None:
    """Whether anybody has looked meanwhile or not."""
    clock, values = Clock(), ValueStore()
    sessions = Sessions(60.0, values, clock)
    session = with_values(values, sessions.open(None, "uid:1"), 1)
    sessions.close(session)
    clock.now += 61
    assert sessions.open(session.id, "uid:1") is not session
    assert len(values) == 0


def test_names_whose_time_has_passed_go_when_somebody_looks() -> None:
    """They have no session that could end."""
    clock = Clock()
    values = ValueStore(clock=clock)
    sessions = Sessions(60.0, values, clock)
    values.name("uid:1", "n", b"", [Value(None, Leaf("A", "uint8", (1,)), 1, "f")], 10.0)
    clock.now += 11
    sessions.poll()
    assert len(values) == 0


def test_a_session_ends_behind_the_calls_that_it_has_made() -> None:
    """They run, find their values, and leave nothing; the others do not wait for that."""
    clock, values = Clock(), ValueStore()
    sessions = Sessions(60.0, values, clock)
    session = with_values(values, sessions.open(None, "uid:1"), 1)
    release, found = threading.Event(), list[int]()

    def call() -> Finish:
        release.wait(PATIENCE_S)
        found.append(session.values.get(1).nbytes)
        with_values(values, session, 2)
        return lambda: (None, ())

    session.call_queue.put(call, lambda _: None)
    sessions.close(session)
    clock.now += 61
    sessions.poll()
    assert (len(sessions), len(values)) == (0, 1)
    release.set()
    until(lambda: len(values) == 0)
    assert found == [1]
    with_values(values, session, 3)
    assert len(values) == 0


def test_somebody_who_may_not_come_back() -> None:
    """Those sessions end, the open ones with their connections; others' go on."""
    sessions = Sessions(60.0)
    one, left, other = (sessions.open(None, name) for name in ("a", "a", "b"))
    sessions.close(left)
    sessions.end_all_of("a")
    assert sessions.by_principal() == [
        {"principal": "a", "connections": 1, "sessions": 1},
        {"principal": "b", "connections": 1, "sessions": 1},
    ]
    sessions.close(one)
    sessions.close(other)
    assert [row["principal"] for row in sessions.by_principal()] == ["b"]
    assert sessions.open(one.id, "a") is not one
