from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining, WorkerReplaced
from jaxd_server.execution.admission import Admission
from tests.server.admitted import admitted
from tests.server.staging import PATIENCE_S, join, start, until, waiting


def pass_through(admission: Admission, **more: Any) -> None:
    """Has a request admitted that is no call."""
    with admission.shared("(request)", **more):
        pass


def test_running_calls_are_listed_the_oldest_first() -> None:
    """With their function and their age in seconds, as long as they run."""
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


def test_two_calls_of_one_function_are_two() -> None:
    """Equal in everything, and each leaves for itself."""
    admission = Admission()
    calls = [admitted(admission, "step") for _ in range(2)]
    calls[0].started = calls[1].started
    admission.release(calls[0])
    assert len(admission.running()) == 1


def test_a_call_that_leaves_twice_is_gone_once() -> None:
    """Leaving is safe to repeat."""
    admission = Admission()
    call = admitted(admission, "step")
    admission.release(call)
    admission.release(call)
    assert admission.running() == []


def test_a_draining_server_takes_no_calls() -> None:
    """The error may be repeated, and says so."""
    admission = Admission()
    admission.drain()
    assert admission.draining
    with pytest.raises(ServerDraining, match="Repeat the call") as raised:
        admitted(admission, "step")
    assert raised.value.may_repeat
    assert admission.running() == []


def test_calls_for_the_next_worker_wait_for_the_running_ones() -> None:
    """They are refused when the worker is about to end: until then there is no other."""
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


def test_draining_waits_for_the_running_calls() -> None:
    """All of them, and refuses new ones meanwhile."""
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


def test_a_call_whose_deadline_passed_is_not_begun() -> None:
    """Nobody waits for its result any more."""
    admission = Admission()
    with pytest.raises(DeadlineExceeded, match=r"timeout_s.*--threads"):
        admitted(admission, "step", deadline=time.monotonic() - 1)
    assert admission.running() == []


def test_a_deadline_in_the_future_is_no_obstacle() -> None:
    """Only what is over is refused."""
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
    """A worker that could rest looks around just when somebody asks it to give way."""
    admission = Admission()
    assert admission.pause(0.0)
    assert admission.pause(0.0)
    admission.resume()
    assert admission.is_barred
    admission.resume()
    assert not admission.is_barred


def test_a_pause_is_no_long_one() -> None:
    """Where a call goes on, so do the others."""
    admission = Admission()
    running = admitted(admission, "step")
    assert not admission.pause(0.0)
    admission.release(admitted(admission, "other"))
    admission.release(running)
    assert admission.pause(0.0)


def test_calls_for_a_worker_that_is_there_already_do_not_wait() -> None:
    """Though long ones are still running here; arrays can still be fetched."""
    admission = Admission()
    running = admitted(admission, "step")
    admission.replace(is_followed=True)
    with pytest.raises(WorkerReplaced):
        admitted(admission, "other")
    pass_through(admission)
    admission.release(running)


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


def test_what_a_callback_asks_is_answered_while_the_server_drains() -> None:
    """A call that runs waits for it: else draining would wait for both."""
    admission = Admission()
    outer = admitted(admission, "step")
    draining = start(admission.drain)
    until(lambda: admission.draining)
    inner = admitted(admission, "inner", inside=True)
    admission.release(inner)
    assert draining.is_alive()
    admission.release(outer)
    join([draining])
