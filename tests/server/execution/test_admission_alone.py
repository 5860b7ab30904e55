"""Calls that run while no other does."""

from __future__ import annotations

import threading
import time

import pytest

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining
from jaxd_server.execution.admission import Admission, Operation
from tests.server.admitted import admitted
from tests.server.staging import PATIENCE_S, join, start, until, waiting


def nothing() -> None:
    """What others are told of company that they do not mind."""


class Alone:
    """A call in a thread of its own that wants to be alone."""

    def __init__(self, admission: Admission, deadline: float | None = None) -> None:
        self.is_alone: bool | None = None
        self.company = threading.Event()
        self._admission = admission
        self.call = Operation(name="deadly", deadline=deadline)
        self.thread = start(self._enter)

    def _enter(self) -> None:
        self.is_alone = self._admission.acquire_exclusive(self.call, self.company.set)

    def thread_is_done(self) -> bool:
        """Whether it has been admitted."""
        return not self.thread.is_alive()

    def leave(self) -> None:
        """Ends it."""
        self._admission.release(self.call)


def test_it_begins_when_those_before_it_are_done_and_others_wait_for_it() -> None:
    """First come, first served, with nobody beside it."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    before = admitted(admission, "before")
    alone = Alone(admission)
    until(lambda: admission.is_barred and waiting(admission._changed))
    after: list[Operation] = []
    late = start(lambda: after.append(admitted(admission, "after")))
    until(lambda: waiting(admission._changed) == 2)
    assert not alone.thread_is_done()
    admission.release(before)
    join([alone.thread])
    assert (alone.is_alone, after) == (True, [])
    alone.leave()
    join([late])
    assert len(after) == 1
    assert not alone.company.is_set()
    assert not admission.is_barred


def test_one_after_the_other() -> None:
    """Several that were under way when a worker died are no company for each other."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    first = Alone(admission)
    join([first.thread])
    second = Alone(admission)
    until(lambda: waiting(admission._changed))
    assert [call["function"] for call in admission.running()] == ["deadly"]
    first.leave()
    join([second.thread])
    assert second.is_alone
    second.leave()


def test_what_runs_inside_of_it_does_not_wait() -> None:
    """It would wait for itself."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone = Operation(name="deadly")
    admission.acquire_exclusive(alone, nothing)
    inner = admitted(admission, "inner", inside=True)
    admission.release(inner)
    admission.release(alone)


def test_it_does_not_keep_others_waiting_for_ever() -> None:
    """After its time they are let in, and it is told that it has company."""
    admission = Admission(PATIENCE_S, 0.0)
    alone = Alone(admission)
    join([alone.thread])
    assert alone.is_alone
    other = admitted(admission, "other")
    assert alone.company.is_set()
    assert not admission.is_barred
    alone.leave()
    admission.release(other)


def test_others_wait_longer_where_that_is_needed() -> None:
    """For one that took longer the last time."""
    admission = Admission(PATIENCE_S, 0.0)
    alone = Operation(name="slow")
    assert admission.acquire_exclusive(alone, nothing, alone_s=PATIENCE_S)
    after: list[Operation] = []
    late = start(lambda: after.append(admitted(admission, "after")))
    until(lambda: waiting(admission._changed))
    assert after == []
    admission.release(alone)
    join([late])
    admission.release(after[0])


def test_it_does_not_wait_for_ever_for_those_before_it() -> None:
    """It runs beside a long call, and says that it is not alone; nobody waits for it then."""
    admission = Admission(0.0, PATIENCE_S)
    before = admitted(admission, "training for hours")
    alone = Operation(name="deadly")
    assert not admission.acquire_exclusive(alone, nothing)
    admission.release(admitted(admission, "other"))
    admission.release(alone)
    admission.release(before)


def test_deadlines_pass_while_calls_wait() -> None:
    """On both sides; who gives up keeps nobody else waiting."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone = Operation(name="deadly")
    admission.acquire_exclusive(alone, nothing)
    soon = time.monotonic() + 0.01
    with pytest.raises(DeadlineExceeded):
        admitted(admission, "other", deadline=soon)
    with pytest.raises(DeadlineExceeded):
        admission.acquire_exclusive(Operation(name="deadly too", deadline=soon), nothing)
    admission.release(alone)
    assert not admission.is_barred


def test_a_server_that_drains_refuses_those_who_wait() -> None:
    """And waits for the one that runs."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone = Operation(name="deadly")
    admission.acquire_exclusive(alone, nothing)
    refused: list[BaseException] = []

    def enter() -> None:
        with pytest.raises(ServerDraining) as raised:
            admitted(admission, "other")
        refused.append(raised.value)

    def enter_alone() -> None:
        with pytest.raises(ServerDraining) as raised:
            admission.acquire_exclusive(Operation(name="other"), nothing)
        refused.append(raised.value)

    threads = [start(enter), start(enter_alone)]
    until(lambda: waiting(admission._changed) == 2)
    draining = start(admission.drain)
    join(threads)
    assert len(refused) == 2
    admission.release(alone)
    join([draining])
