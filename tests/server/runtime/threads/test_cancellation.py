from __future__ import annotations

import pytest

from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken


def test_who_works_on_a_call_is_told_once_that_nobody_waits() -> None:
    """At once when that is so already; not any more when it left. Some calls cannot be given up."""
    cancel_token, told = CancelToken(), []
    cancel_token.notify(lambda: told.append("early"))
    with cancel_token.cancel_hook(lambda: told.append("left")):
        cancel_token.check()
    assert cancel_token.cancel(Cancelled("not wanted."))
    assert not cancel_token.cancel(DeadlineExceeded("late."))
    cancel_token.notify(lambda: told.append("late"))
    assert told == ["early", "late"]
    NEVER_CANCELLED.set_phase("running")
    assert not NEVER_CANCELLED.cancel(Cancelled("not wanted."))
    NEVER_CANCELLED.notify(lambda: pytest.fail("nobody gives it up"))
    NEVER_CANCELLED.check()
    assert NEVER_CANCELLED.phase == "waiting"


def test_the_reason_is_raised_where_somebody_asks() -> None:
    """An error of its own for each, so that none carries another one's traceback."""
    cancel_token = CancelToken()
    cancel_token.cancel(reason := Cancelled("not wanted."))
    with pytest.raises(Cancelled, match="not wanted") as raised:
        cancel_token.check()
    assert raised.value is not reason


def test_what_was_answered_cannot_be_given_up() -> None:
    """Exactly one of the two happens."""
    cancel_token, told = CancelToken(), []
    cancel_token.notify(lambda: told.append("told"))
    assert cancel_token.end()
    assert not cancel_token.cancel(Cancelled("too late."))
    assert not cancel_token.end()
    cancel_token.check()
    assert told == []


def test_waiting_building_and_running_are_timed_apart() -> None:
    """In numbers and in words; what took next to no time is left out."""
    now = [0.0]
    cancel_token = CancelToken(clock=lambda: now[0])
    for phase, seconds in (("waiting", 1.5), ("building", 0.01), ("running", 2.0)):
        cancel_token.set_phase(phase)  # type: ignore[arg-type]
        now[0] += seconds
    assert cancel_token.spent() == pytest.approx({"waiting": 1.5, "building": 0.01, "running": 2.0})
    assert cancel_token.account() == "1.5 s waiting for its turn, 2.0 s running"
    cancel_token.cancel(Cancelled("not wanted."))
    now[0] += 3.0
    assert cancel_token.cancelled_s == 3.0
