from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import Cancelled, DeadlineExceeded, ServerDraining, WorkerReplaced
from jaxd_server.execution.admission import Admission, Operation
from jaxd_server.runtime.threads.cancellation import CancelToken
from tests.server.admitted import admitted
from tests.server.staging import PATIENCE_S, join, start, until, waiting


def pass_through(admission: Admission, **more: Any) -> None:
    """Has a request admitted that is no call."""
    with admission.shared("(request)", **more):
        pass


def test_running_calls_are_listed_the_oldest_first() -> None:
    """As long as they run, each for itself; leaving is safe to repeat."""
    admission = Admission()
    first = admitted(admission, "first")
    second = admitted(admission, "second")
    first.started -= 5.0
    assert [call["function"] for call in admission.running()] == ["first", "second"]
    assert float(admission.running()[0]["seconds"]) >= 5.0
    admission.release(first)
    assert [call["function"] for call in admission.running()] == ["second"]
    admission.release(second)
    assert admission.running() == []
    admission = Admission()
    calls = [admitted(admission, "step") for _ in range(2)]
    calls[0].started = calls[1].started
    admission.release(calls[0])
    assert len(admission.running()) == 1
    admission = Admission()
    call = admitted(admission, "step")
    admission.release(call)
    admission.release(call)
    assert admission.running() == []


def test_a_draining_server_takes_no_calls() -> None:
    """It waits for all that run, and for what a callback asks."""
    admission = Admission()
    admission.drain()
    assert admission.draining
    with pytest.raises(ServerDraining, match="Repeat the call") as raised:
        admitted(admission, "step")
    assert raised.value.may_repeat
    assert admission.running() == []
    admission = Admission()
    calls = [admitted(admission, "step") for _ in range(2)]
    draining = start(admission.drain)
    until(lambda: admission.draining)
    with pytest.raises(ServerDraining):
        admitted(admission, "late")
    admission.release(calls[0])
    assert draining.is_alive()
    admission.release(calls[1])
    join([draining])
    admission = Admission()
    outer = admitted(admission, "step")
    draining = start(admission.drain)
    until(lambda: admission.draining)
    inner = admitted(admission, "inner", inside=True)
    admission.release(inner)
    assert draining.is_alive()
    admission.release(outer)
    join([draining])


def test_calls_for_the_next_worker_wait_for_the_running_ones() -> None:
    """Until then there is no other, unless it is there already; arrays can still be fetched."""
    admission = Admission()
    running = admitted(admission, "step")
    admission.replace()
    assert admission.draining
    refused: list[WorkerReplaced] = []

    def enter() -> None:
        with pytest.raises(WorkerReplaced, match="Repeat the call") as raised:
            admitted(admission, "other")
        refused.append(raised.value)

    thread = start(enter)
    until(lambda: waiting(admission._changed))
    assert refused == []
    admission.release(running)
    join([thread])
    assert refused[0].may_repeat
    admission.drain()
    admission = Admission()
    running = admitted(admission, "step")
    admission.replace(is_followed=True)
    with pytest.raises(WorkerReplaced):
        admitted(admission, "other")
    pass_through(admission)
    admission.release(running)


def test_a_call_whose_deadline_passed_is_not_begun() -> None:
    """Nobody waits for its result any more; one in the future is no obstacle."""
    admission = Admission()
    with pytest.raises(DeadlineExceeded, match=r"timeout_s.*--threads"):
        admitted(admission, "step", deadline=time.monotonic() - 1)
    assert admission.running() == []
    admission = Admission()
    admission.release(admitted(admission, "step", deadline=time.monotonic() + PATIENCE_S))


def test_a_pause_ends_when_no_call_runs() -> None:
    """New ones wait meanwhile, and run when it is over."""
    admission = Admission()
    running = admitted(admission, "step")
    paused = start(lambda: admission.pause(PATIENCE_S))
    until(lambda: waiting(admission._changed))
    late = start(lambda: admission.release(admitted(admission, "late")))
    always = start(lambda: pass_through(admission))
    until(lambda: waiting(admission._changed) == 3)
    admission.release(running)
    join([paused])
    assert late.is_alive()
    assert always.is_alive()
    admission.resume()
    join([late, always])
    assert not admission.is_barred


def test_who_pauses_ends_no_pause_of_others() -> None:
    """A worker could rest just when it is asked to give way; where a call goes on, so do others."""
    admission = Admission()
    assert admission.pause(0.0)
    assert admission.pause(0.0)
    admission.resume()
    assert admission.is_barred
    admission.resume()
    running = admitted(admission, "step")
    assert not admission.pause(0.0)
    admission.release(admitted(admission, "other"))
    admission.release(running)
    assert admission.pause(0.0)


@pytest.mark.parametrize("end", [Admission.drain, Admission.replace])
def test_what_leaves_values_is_refused_as_calls_are(end: Callable[[Admission], None]) -> None:
    """They would be gone with the worker; what reads and ends values is answered until then."""
    admission = Admission()
    end(admission)
    refused = WorkerReplaced if end is Admission.replace else ServerDraining
    with pytest.raises(refused, match="Repeat the call"):
        pass_through(admission, leaves_values=True)
    assert admission.running() == []
    pass_through(admission)


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
    """First come, first served, with nobody beside it; several go one after the other."""
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
    """It runs beside a long call, and says so. What runs inside of it does not wait for it."""
    admission = Admission(0.0, PATIENCE_S)
    before = admitted(admission, "training for hours")
    alone = Operation(name="deadly")
    assert not admission.acquire_exclusive(alone, nothing)
    admission.release(admitted(admission, "other"))
    admission.release(alone)
    admission.release(before)
    admission = Admission(PATIENCE_S, PATIENCE_S)
    alone = Operation(name="deadly")
    admission.acquire_exclusive(alone, nothing)
    inner = admitted(admission, "inner", inside=True)
    admission.release(inner)
    admission.release(alone)


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


def test_a_call_is_shown_with_what_it_does() -> None:
    """With its age; for how long it waited, and behind what; left once its client was told."""
    call = Operation(name="step")
    call.started = time.monotonic() - 5.0
    row = call.row()
    assert row.keys() == {"function", "seconds"}
    assert row["function"] == "step"
    assert float(row["seconds"]) >= 5.0
    assert not call.is_abandoned
    now = [0.0]
    cancel_token = CancelToken(clock=lambda: now[0])
    call = Operation(name="step", cancel_token=cancel_token)
    cancel_token.set_phase("waiting")
    now[0] += 1.5
    cancel_token.set_phase("running")
    row = call.row()
    assert (row["phase"], row["waited_s"]) == ("running", 1.5)
    cancel_token = CancelToken()
    call = Operation(name="small", cancel_token=cancel_token)
    cancel_token.waits_behind = lambda: ("slow", b"session", 78.0)
    row = call.row()
    assert (row["phase"], row["behind"], row["behind_s"]) == ("waiting", "slow", 78.0)
    cancel_token = CancelToken()
    call = Operation(name="step", cancel_token=cancel_token)
    cancel_token.cancel(Cancelled("not wanted."))
    found = [call.is_abandoned]
    cancel_token.is_client_notified = True
    assert [*found, call.is_abandoned] == [False, True]
