"""What one connection has of its session."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jaxd_protocol.base import shared_memory
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import BLOCK_PROBE_BYTES, ResultPolicy
from jaxd_protocol.pytree import Leaf
from jaxd_protocol.wire.stream import Descriptors
from jaxd_server.execution.call import Finish, Reply
from jaxd_server.rpc.sessions import Session, SessionState
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import Value
from tests.server.staging import until
from tests.spans import packed_ids

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


def test_calls_run_in_the_order_in_which_they_came(scenario: Scenario) -> None:
    """Those of the reading thread, and those of others."""
    for number in range(20):
        scenario.call(number, here=number % 3 == 0)
    until(lambda: len(scenario.sent) == 20)
    assert scenario.runs == list(range(20))


@pytest.mark.parametrize("here", [True, False])
def test_what_comes_behind_a_call_stays_behind_it(scenario: Scenario, here: bool) -> None:
    """Whoever read it is held up, and another thread reads on."""
    go_on = scenario.enter(0, here=here)
    scenario.own.drop(packed_ids([0]))
    scenario.enter(1, here=here)()
    go_on()
    until(lambda: len(scenario.sent) == 2)
    assert (scenario.runs, list(scenario.session.values.values)) == ([0, 1], [1])


def test_what_is_dropped_goes(scenario: Scenario) -> None:
    """And what is not there does no harm."""
    value = Value(None, Leaf("A", "float32", (2,)), 8, "f")
    scenario.values.add(scenario.session.values, {1: value, 2: value})
    scenario.own.drop(b"")
    scenario.own.drop(packed_ids([1, 9]))
    assert list(scenario.session.values.values) == [2]


def test_a_block_shows_what_is_in_it(scenario: Scenario) -> None:
    """So the client knows that it is the same memory; and then it can be read."""
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


def test_a_descriptor_that_got_lost_is_no_error(scenario: Scenario) -> None:
    """Something in between does not pass them on: the client uses the socket."""
    assert scenario.own.share_block(Descriptors(), 3, SIZE) == (OK, b"")


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
