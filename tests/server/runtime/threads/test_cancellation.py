from __future__ import annotations

import pytest

from jaxd_protocol.errors import Cancelled, DeadlineExceeded
from jaxd_server.runtime.threads.cancellation import EVER, Interest


def test_who_works_on_a_call_is_told_once_that_nobody_waits() -> None:
    """At once when that is so already; not any more when it left."""
    interest, told = Interest(), []
    interest.tell(lambda: told.append("early"))
    with interest.telling(lambda: told.append("left")):
        interest.check()
    assert interest.give_up(Cancelled("not wanted."))
    assert not interest.give_up(DeadlineExceeded("late."))
    interest.tell(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_the_reason_is_raised_where_somebody_asks() -> None:
    """An error of its own for each, so that none carries another one's traceback."""
    interest = Interest()
    interest.give_up(reason := Cancelled("not wanted."))
    with pytest.raises(Cancelled, match="not wanted") as raised:
        interest.check()
    assert raised.value is not reason


def test_what_was_answered_cannot_be_given_up() -> None:
    """Exactly one of the two happens."""
    interest, told = Interest(), []
    interest.tell(lambda: told.append("told"))
    assert interest.end()
    assert not interest.give_up(Cancelled("too late."))
    assert not interest.end()
    interest.check()
    assert told == []


def test_waiting_building_and_running_are_timed_apart() -> None:
    """In numbers and in words; what took next to no time is left out."""
    now = [0.0]
    interest = Interest(clock=lambda: now[0])
    for phase, seconds in (("waiting", 1.5), ("building", 0.01), ("running", 2.0)):
        interest.enter(phase)  # type: ignore[arg-type]
        now[0] += seconds
    assert interest.spent() == pytest.approx({"waiting": 1.5, "building": 0.01, "running": 2.0})
    assert interest.account() == "1.5 s waiting for its turn, 2.0 s running"
    interest.give_up(Cancelled("not wanted."))
    now[0] += 3.0
    assert interest.given_up_s == 3.0


def test_some_calls_cannot_be_given_up() -> None:
    """Nothing is noted of them."""
    EVER.enter("running")
    assert not EVER.give_up(Cancelled("not wanted."))
    EVER.tell(lambda: pytest.fail("nobody gives it up"))
    EVER.check()
    assert EVER.phase == "waiting"
