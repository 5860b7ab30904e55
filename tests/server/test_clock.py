from __future__ import annotations

import threading
import time

import pytest  # noqa: TC002  as everywhere in the tests

from jaxd_server.clock import Clock
from tests.server.staging import PATIENCE_S, until


def test_what_is_due_is_done_in_order() -> None:
    """Whichever was asked for first."""
    clock, done = Clock(), []
    now = time.monotonic()
    clock.at(now + 0.02, lambda: done.append("later"))
    clock.at(now + 0.01, lambda: done.append("sooner"))
    clock.at(now - 1.0, lambda: done.append("at once"))
    until(lambda: len(done) == 3)
    assert done == ["at once", "sooner", "later"]


def test_what_was_called_off_is_not_done() -> None:
    """And is not waited for: the thread ends when nothing is left."""
    clock, done = Clock(), []
    clock.after(3600.0, lambda: done.append("never")).off()
    rung = threading.Event()
    clock.after(0.0, rung.set)
    assert rung.wait(PATIENCE_S)
    until(lambda: not clock._runs)
    assert (done, clock._alarms) == ([], [])


def test_one_that_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""
    clock, rung = Clock(), threading.Event()

    def fail() -> None:
        raise ValueError("it cannot be done")

    clock.after(0.0, fail)
    clock.after(0.0, rung.set)
    assert rung.wait(PATIENCE_S)
    assert "alarm_failed" in caplog.text
