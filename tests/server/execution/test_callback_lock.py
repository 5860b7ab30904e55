from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import CallbackError, DeadlineExceeded
from jaxd_server.execution import callback_lock as module
from jaxd_server.execution.call import Call
from jaxd_server.execution.callback_lock import CallbackLock
from jaxd_server.execution.run import Run
from jaxd_server.rpc.sessions import Session
from jaxd_server.user_code.output import current_output, output_to_sole_caller
from tests.end_to_end.gates import in_thread
from tests.server import builds
from tests.server.in_process import Source
from tests.server.staging import PATIENCE_S

X = np.arange(3, dtype=np.float32)


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """Runs on a program that only is there."""

    def make(*, calls_back: bool, deadline: float | None = None) -> Run:
        executable = builds.executable()
        executable.program.calls_back = executable.program.calls_python = calls_back
        call = Source(lambda x: x).call((X,))
        call.deadline = deadline
        return Run(call, executable, [X])

    return make


def test_programs_that_call_back_take_turns(make_run: Callable[..., Run]) -> None:
    """Others do not wait for them."""
    turns = CallbackLock()
    entered, leave, order = threading.Event(), threading.Event(), list[str]()

    def hold(_: Run) -> None:
        entered.set()
        leave.wait(PATIENCE_S)
        order.append("first")

    first = threading.Thread(target=turns.start, args=(make_run(calls_back=True), hold))
    first.start()
    entered.wait(PATIENCE_S)
    second = threading.Thread(
        target=turns.start, args=(make_run(calls_back=True), lambda _: order.append("second"))
    )
    second.start()
    other = make_run(calls_back=False)
    turns.start(other, lambda _: order.append("other"))
    turns.end(other)
    leave.set()
    first.join()
    second.join()
    assert order == ["other", "first", "second"]


def test_other_threads_speak_for_the_call_whose_turn_it_is(make_run: Callable[..., Run]) -> None:
    """As those do in which XLA calls back."""
    run, events = make_run(calls_back=True), list[Any]()
    run.call.emit = lambda *event: events.append(event)

    def call_back(_: Run) -> None:
        call_output = current_output()
        assert call_output is not None
        call_output.write("stdout", "from a callback\n")

    CallbackLock().start(run, call_back)
    assert [content["text"] for _, content in events] == ["from a callback\n"]
    assert current_output() is None


def test_nobody_waits_longer_than_his_client(make_run: Callable[..., Run]) -> None:
    """And the turn is free again when the one before has failed."""
    turns = CallbackLock()

    def too_late(_: Run) -> None:
        late = make_run(calls_back=True, deadline=time.monotonic() - 1)
        with pytest.raises(DeadlineExceeded, match="other programs with callbacks"):
            turns.start(late, lambda _: None)
        raise KeyError

    with pytest.raises(KeyError):
        turns.start(make_run(calls_back=True), too_late)
    turns.start(make_run(calls_back=True), lambda _: None)


def test_a_call_from_inside_of_a_callback_does_not_wait_for_itself(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where the turn is its own session's; soon where it may be."""
    turns, inner = CallbackLock(), make_run(calls_back=True)
    monkeypatch.setattr(module, "_NESTED_WAIT_S", 0.01)
    inner.call.inside = True

    def call_back(outer: Run) -> None:
        with pytest.raises(CallbackError, match="one would wait for the other"):
            turns.start(inner, lambda _: None)
        inner.call.session = Session("another", "")
        with pytest.raises(CallbackError, match="one would wait for the other"):
            turns.start(inner, lambda _: None)

    turns.start(make_run(calls_back=True), call_back)
    turns.start(inner, lambda _: None)


def test_what_only_computes_takes_no_turn(make_run: Callable[..., Run]) -> None:
    """It runs beside others, and its words are its client's while it does."""
    turns, run, events = CallbackLock(), make_run(calls_back=False), list[Any]()
    run.executable.program.calls_python = True
    run.call.emit = lambda *event: events.append(event)

    def call_back(_: Run) -> None:
        turns.start(run, lambda _: None)

    turns.start(make_run(calls_back=True), call_back)
    with output_to_sole_caller():
        call_output = current_output()
        assert call_output is not None
        call_output.write("stdout", "no end")
    turns.end(run)
    assert [content["text"] for _, content in events] == ["no end"]
    with output_to_sole_caller():
        assert current_output() is None


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_client_that_was_lost_is_waited_for_while_nobody_waits_for_his_turn(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    """Else its program has its callback fail, and the next one runs."""
    turns, entered, given_up = CallbackLock(), threading.Event(), threading.Event()
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_LOST_CLIENT_S", 0.0)
    monkeypatch.setattr(Call, "stop_waiting", lambda _, before: given_up.set())

    def lose_client(_: Run) -> None:
        entered.set()
        assert given_up.wait(PATIENCE_S if is_wanted else 0.1) is is_wanted

    first = in_thread(turns.start, make_run(calls_back=True), lose_client)
    entered.wait(PATIENCE_S)
    if is_wanted:
        turns.start(make_run(calls_back=True), lambda _: None)
    first.result(PATIENCE_S)
