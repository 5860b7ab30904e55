from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.base import shared_memory
from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import BLOCK_PROBE_BYTES, ResultPolicy
from jaxd_protocol.pytree import Leaf
from jaxd_protocol.wire.stream import Descriptors
from jaxd_server.execution.call import Finish, Reply
from jaxd_server.jax_compat.devices import Devices
from jaxd_server.rpc.sessions import Session, Sessions, SessionState
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import Value
from tests.server.staging import PATIENCE_S, until
from tests.spans import packed_ids


def test_a_client_that_comes_back_finds_its_session() -> None:
    """Also while an earlier connection is open. Others get one of their own, whatever they name."""
    sessions = Sessions(60.0)
    session, other = (sessions.open(None, "uid:1") for _ in range(2))
    assert session is not other
    assert session.id != other.id
    assert len(bytes.fromhex(session.id)) == 16
    assert (len(sessions), sessions.connections) == (2, 2)
    assert sessions.open(session.id, "uid:1") is session
    assert session.connections == 2
    for one in (session, session, other):
        sessions.close(one)
    assert (len(sessions), sessions.connections) == (2, 0)
    assert sessions.open(session.id, "uid:1") is session
    stranger = sessions.open(session.id, "uid:2")
    assert (stranger is session, stranger.principal) == (False, "uid:2")
    assert sessions.open("deadbeef", "uid:1").id != "deadbeef"


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


def test_a_session_ends_with_its_grace_or_its_client() -> None:
    """Never while it has a connection; at once where its client cannot come back, or is gone."""
    sessions = Sessions(-1.0)  # over as soon as it begins
    session = sessions.open(None, "uid:1")
    assert len(sessions) == 1
    sessions.close(session)
    assert len(sessions) == 0
    assert sessions.open(session.id, "uid:1") is not session
    sessions = Sessions(60.0)
    sessions.close(sessions.open(None, "uid:1"), for_good=True)
    assert len(sessions) == 0
    session, counts = sessions.open(None, "uid:1"), []
    for step in (sessions.end_if_left, sessions.close, sessions.end_if_left):
        step(session)
        counts.append(len(sessions))
    assert counts == [1, 1, 0]


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
        self.awaited_since: float | None = None

    def stop_waiting(self, before: float = math.inf) -> None:
        self.awaited_since = before

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
    assert {call.awaited_since for call in calls} == {math.inf}
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
    assert {call.awaited_since for call in calls} == {clock.now - 30}
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
    """Not before, nor while it has a connection; those of others stay. Who is late has none."""
    clock, values = Clock(), ValueStore()
    sessions = Sessions(60.0, values, clock)
    mine, _ = (with_values(values, sessions.open(None, "uid:1"), 1) for _ in range(2))
    assert sessions.open(mine.id, "uid:1") is mine
    sessions.close(mine)  # of its two connections an old one, late
    clock.now += 1000
    sessions.poll()
    assert len(values) == 2
    sessions.close(mine)
    clock.now += 59
    assert sessions.open(mine.id, "uid:1") is mine
    assert mine.values.get(1).nbytes == 1
    sessions.close(mine)
    clock.now += 60
    sessions.poll()
    assert (len(values), mine.values.ended) == (2, False)
    clock.now += 0.1
    assert sessions.open(mine.id, "uid:1") is not mine
    assert (len(values), mine.values.ended) == (1, True)


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


SIZE = 1 << 18


class Scenario:
    """A connection of a session, and what was sent over it."""

    def __init__(self) -> None:
        self.values = ValueStore()
        self.session = Session("1", "ann")
        self.own = SessionState(self.session, self.values, 1 << 30)
        self.runs: list[int] = []
        self.sent: list[tuple[int, Reply]] = []

    def start(self, number: int) -> Finish:
        """Runs a call, which makes a value with its number."""
        self.runs.append(number)
        made = Value(None, Leaf("A", "float32", (2,)), 8, "f")
        self.values.add(self.session.values, {number: made})
        return lambda: ((number,), ())

    def call(self, number: int, *, here: bool = False, acked: int = 0) -> None:
        """A call on values arrives."""
        self.enter(number, here=here, acked=acked)()

    def enter(
        self, number: int, *, here: bool, acked: int = 0, is_nested: bool = False
    ) -> Callable[[], None]:
        """It has its place; goes on with it."""
        stay, send = ResultPolicy(number, -1, 0, acked), partial(self._send, number)
        start = partial(self.start, number)
        more = {"here": here, "is_short": True, "is_nested": is_nested}
        return self.own.enqueue(stay, start, send, **more)[1]

    def _send(self, number: int, reply: Reply) -> None:
        self.sent.append((number, reply))


@pytest.fixture
def scenario() -> Scenario:
    """An open connection."""
    return Scenario()


@pytest.mark.parametrize("here", [True, False])
def test_a_call_runs_once_however_often_it_is_sent(scenario: Scenario, here: bool) -> None:
    """The second time it is answered with the reply of the first."""
    for _ in range(2):
        scenario.call(7, here=here)
        until(lambda: bool(scenario.sent))
    until(lambda: len(scenario.sent) == 2)
    assert scenario.runs == [7]
    assert [reply for _, reply in scenario.sent] == [((7,), ())] * 2


@pytest.mark.parametrize("here", [True, False])
def test_what_comes_behind_a_call_stays_behind_it(scenario: Scenario, here: bool) -> None:
    """Whoever read it is held up, and another thread reads on."""
    go_on = scenario.enter(0, here=here)
    scenario.own.drop(b"")
    scenario.own.drop(packed_ids([0, 9]))  # of which one is not there
    scenario.enter(1, here=here)()
    go_on()
    until(lambda: len(scenario.sent) == 2)
    assert (scenario.runs, list(scenario.session.values.values)) == ([0, 1], [1])


def test_a_block_shows_what_is_in_it(scenario: Scenario) -> None:
    """So the client knows that it is the same memory, and what got lost; then it can be read."""
    assert scenario.own.share_block(Descriptors(), 3, SIZE) == (OK, b"")
    descriptor = shared_memory.create_sealed(SIZE)
    os.pwrite(descriptor, b"x" * BLOCK_PROBE_BYTES + b"y", 0)
    told = scenario.own.share_block(Descriptors([descriptor]), 3, SIZE)
    assert told == (OK, b"x" * BLOCK_PROBE_BYTES)
    view = scenario.own.referenced_data._blocks.view(3, BLOCK_PROBE_BYTES, 1)
    assert bytes(view) == b"y"
    del view
    scenario.own.forget_blocks((3, 4))
    with pytest.raises(ProtocolError, match="not announced"):
        scenario.own.referenced_data._blocks.view(3, 0, 1)


def test_memory_that_could_be_taken_away_is_refused(scenario: Scenario) -> None:
    """The client is told, and the connection goes on."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    told: Any = scenario.own.share_block(Descriptors([read_end]), 3, SIZE)
    assert told[0] == FAILED
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(read_end)


def test_a_client_that_ends_is_not_waited_for(scenario: Scenario) -> None:
    """Its session is over as soon as its connection is."""
    scenario.own.end_session()
    assert scenario.session.is_over


def test_calls_of_callbacks_do_not_wait_behind_others(scenario: Scenario) -> None:
    """One waits for them; and what is dropped after them goes once they have begun."""
    scenario.session.call_queue._starts = True  # a call that waits for what it has called back
    behind = scenario.enter(1, here=False)
    behind()
    scenario.enter(2, here=False, is_nested=True)()
    assert scenario.runs == [2]
    scenario.enter(3, here=False, is_nested=True)
    scenario.own.drop(packed_ids([2, 3]))
    scenario.session.call_queue._starts = False
    behind()
    assert scenario.runs == [2, 1, 3]
    assert list(scenario.session.values.values) == [1]
