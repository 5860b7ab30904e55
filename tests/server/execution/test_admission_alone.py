"""Calls that run while no other does."""

from __future__ import annotations

import threading
import time

import pytest

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining
from jaxd_server.execution.admission import Admission, AdmittedCall
from tests.server.staging import PATIENCE_S, join, start, until, waiting


def nothing() -> None:
    """What others are told of company that they do not mind."""


class Alone:
    """A call in a thread of its own that wants to be alone."""

    def __init__(self, admission: Admission, deadline: float | None = None) -> None:
        self.admitted: AdmittedCall | None = None
        self.is_alone: bool | None = None
        self.company = threading.Event()
        self._admission = admission
        self._deadline = deadline
        self.thread = start(self._enter)

    def _enter(self) -> None:
        self.admitted, self.is_alone = self._admission.enter_exclusive(
            "deadly", self._deadline, self.company.set
        )

    def thread_is_done(self) -> bool:
        """Whether it has been admitted."""
        return not self.thread.is_alive()

    def leave(self) -> None:
        """Ends it."""
        assert self.admitted is not None
        self._admission.release(self.admitted)


def test_it_begins_when_those_before_it_are_done_and_others_wait_for_it() -> None:
    """First come, first served, with nobody beside it."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    before = admission.acquire("before", None)
    alone = Alone(admission)
    until(lambda: admission.is_barred and waiting(admission._changed))
    after: list[AdmittedCall] = []
    late = start(lambda: after.append(admission.acquire("after", None)))
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
    alone, _ = admission.enter_exclusive("deadly", None, nothing)
    inner = admission.acquire("inner", None, inside=True)
    admission.release(inner)
    admission.release(alone)


def test_it_does_not_keep_others_waiting_for_ever() -> None:
    """After its time they are let in, and it is told that it has company."""
    admission = Admission(PATIENCE_S, 0.0)
    alone = Alone(admission)
    join([alone.thread])
    assert alone.is_alone
    other = admission.acquire("other", None)
    assert alone.company.is_set()
    assert not admission.is_barred
    alone.leave()
    admission.release(other)


def test_others_wait_longer_where_that_is_needed() -> None:
    """For one that took longer the last time."""
    admission = Admission(PATIENCE_S, 0.0)
    alone, is_alone = admission.enter_exclusive("slow", None, nothing, alone_s=PATIENCE_S)
    assert is_alone
    after: list[AdmittedCall] = []
    late = start(lambda: after.append(admission.acquire("after", None)))
    until(lambda: waiting(admission._changed))
    assert after == []
    admission.release(alone)
    join([late])
    admission.release(after[0])


def test_it_does_not_wait_for_ever_for_those_before_it() -> None:
    """It runs beside a long call, and says that it is not alone; nobody waits for it then."""
    admission = Admission(0.0, PATIENCE_S)
    before = admission.acquire("training for hours", None)
    alone, is_alone = admission.enter_exclusive("deadly", None, nothing)
    assert not is_alone
    admission.release(admission.acquire("other", None))
    admission.release(alone)
    admission.release(before)


def test_deadlines_pass_while_calls_wait() -> None:
    """On both sides; who gives up keeps nobody else waiting."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone, _ = admission.enter_exclusive("deadly", None, nothing)
    soon = time.monotonic() + 0.01
    with pytest.raises(DeadlineExceeded):
        admission.acquire("other", soon)
    with pytest.raises(DeadlineExceeded):
        admission.enter_exclusive("deadly too", soon, nothing)
    admission.release(alone)
    assert not admission.is_barred


def test_a_server_that_drains_refuses_those_who_wait() -> None:
    """And waits for the one that runs."""
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone, _ = admission.enter_exclusive("deadly", None, nothing)
    refused: list[BaseException] = []

    def enter() -> None:
        with pytest.raises(ServerDraining) as raised:
            admission.acquire("other", None)
        refused.append(raised.value)

    def enter_alone() -> None:
        with pytest.raises(ServerDraining) as raised:
            admission.enter_exclusive("other", None, nothing)
        refused.append(raised.value)

    threads = [start(enter), start(enter_alone)]
    until(lambda: waiting(admission._changed) == 2)
    draining = start(admission.drain)
    join(threads)
    assert len(refused) == 2
    admission.release(alone)
    join([draining])
