from __future__ import annotations

import threading
import time

import pytest

from jaxd_protocol.base.timers import TimerThread
from tests.server.staging import PATIENCE_S, until


def unexpected() -> None:
    raise AssertionError("a timer has failed")


def made() -> TimerThread:
    """A thread of timers of which none fails."""
    return TimerThread("of a test", unexpected)


def test_what_is_due_is_done_in_order() -> None:
    """Whichever was asked for first."""
    timers, done = made(), []
    now = time.monotonic()
    timers.at(now + 0.02, lambda: done.append("later"))
    timers.at(now + 0.01, lambda: done.append("sooner"))
    timers.at(now - 1.0, lambda: done.append("at once"))
    until(lambda: len(done) == 3)
    assert done == ["at once", "sooner", "later"]


def test_what_was_cancelled_is_not_done() -> None:
    """And is not waited for: the thread ends when nothing is left."""
    timers, done = made(), []
    timer = timers.after(3600.0, lambda: done.append("never"))
    timer.cancel()
    assert timer.is_over
    rung = threading.Event()
    timers.after(0.0, rung.set)
    assert rung.wait(PATIENCE_S)
    until(lambda: not timers._runs)
    assert (done, timers._timers) == ([], [])


def test_many_that_were_cancelled_do_not_pile_up() -> None:
    """Also behind one that is still to come: deadlines are seldom reached."""
    timers = made()
    for _ in range(10_000):
        timers.after(3600.0, unexpected).cancel()
    last = timers.after(1800.0, unexpected)
    for _ in range(10_000):
        timers.after(3600.0, unexpected).cancel()
    assert len(timers._timers) < 200
    last.cancel()


def test_one_that_fails_does_not_keep_the_others() -> None:
    """Its owner is told."""
    failed, rung = threading.Event(), threading.Event()
    timers = TimerThread("of a test", failed.set)

    def fail() -> None:
        raise ValueError("it cannot be done")

    timers.after(0.0, fail)
    timers.after(0.0, rung.set)
    assert rung.wait(PATIENCE_S)
    assert failed.is_set()


def test_where_no_thread_can_be_had_the_next_timer_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And both are done."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    timers, done = made(), list[str]()
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timers.after(0.0, lambda: done.append("first"))
    timers.after(0.0, lambda: done.append("second"))
    until(lambda: len(done) == 2)


def test_after_a_fork_there_are_none() -> None:
    """Those of the parent are its own, and so is the thread."""
    timers = made()
    timers.after(3600.0, unexpected)
    timers.after_fork()
    rung = threading.Event()
    timers.after(0.0, rung.set)
    assert rung.wait(PATIENCE_S)
