from __future__ import annotations

import time
from typing import Any

import pytest

from jaxd.connection.shared_reader import NotSent
from jaxd.dispatch.retry import BusyBackoff, RetryLimits
from jaxd.request.call_request import CallRequest
from jaxd_protocol.errors import ConnectionLost, WorkerLost
from jaxd_protocol.messages.calls import LOST_AGAIN, LOST_ONCE

LOST = ConnectionLost("lost")


def call() -> CallRequest:
    spec: Any = None
    return CallRequest(spec, b"", b"", (), None, "auto")


def marks(call: CallRequest) -> int:
    return call.flags & (LOST_ONCE | LOST_AGAIN)


def test_a_call_that_was_never_lost_is_as_it_was() -> None:
    """Nothing is said of it."""
    one = call()
    assert RetryLimits("f").prepare_retry(one, (1, 7)) is one
    assert marks(one) == 0


def test_the_next_worker_is_told_what_the_last_one_may_have_died_of() -> None:
    """And whether that was so once or again."""
    retry_limits = RetryLimits("f")
    retry_limits.record(LOST, (1, 7))
    once = retry_limits.prepare_retry(call(), (2, 8))
    assert marks(once) == LOST_ONCE
    assert retry_limits.prepare_retry(once, (2, 8)) is once
    retry_limits.record(LOST, (2, 8))
    assert marks(retry_limits.prepare_retry(once, (3, 9))) == LOST_ONCE | LOST_AGAIN


def test_a_worker_that_lives_is_suspected_of_nothing() -> None:
    """When only the connection was lost, the call is repeated once, as any other."""
    retry_limits = RetryLimits("step")
    retry_limits.record(LOST, (1, 7))
    assert marks(retry_limits.prepare_retry(call(), (1, 7))) == 0
    retry_limits.record(LOST, (1, 7))
    with pytest.raises(ConnectionLost, match=r"step was under way, and again.*See the server's"):
        retry_limits.prepare_retry(call(), (1, 7))


def test_a_call_that_is_under_way_when_two_members_are_lost_is_not_tried_on_a_third() -> None:
    """It may be what ends them; one that was lost says nothing."""
    retry_limits = RetryLimits("step")
    retry_limits.record(LOST, (1, 7, "m0"))
    assert marks(retry_limits.prepare_retry(call(), (1, 7, "m1"))) == LOST_ONCE
    retry_limits.record(LOST, (1, 7, "m1"))
    with pytest.raises(WorkerLost, match=r"two members of the pool.*step.*jaxd pool status"):
        retry_limits.prepare_retry(call(), (1, 7, "m2"))


def test_a_call_that_is_lost_in_outages_is_not_what_ends_connections() -> None:
    """It is repeated after each; but not for ever, and once where the server could be reached."""
    retry_limits = RetryLimits("step")
    for outages in range(16):
        retry_limits.record(LOST, (1, 7), outages)
        assert marks(retry_limits.prepare_retry(call(), (1, 7), outages + 1)) == 0
    retry_limits.record(LOST, (1, 7), 16)
    retry_limits.prepare_retry(call(), (1, 7), 16)
    retry_limits.record(LOST, (1, 7), 16)
    with pytest.raises(ConnectionLost, match="step was under way, and again"):
        retry_limits.prepare_retry(call(), (1, 7), 17)


def test_what_was_not_sent_was_not_begun() -> None:
    """No worker can have died of it; it is sent again, but not for ever."""
    retry_limits = RetryLimits("step")
    for _ in range(15):
        retry_limits.record(NotSent("lost"), (1, 7))
        assert marks(retry_limits.prepare_retry(call(), (2, 8))) == 0
    with pytest.raises(ConnectionLost, match="16 times while step was being sent"):
        retry_limits.record(LOST, None)


def test_somewhen_it_is_enough() -> None:
    """Though the server never said that the call is at fault."""
    retry_limits = RetryLimits("step")
    for number in range(16):
        retry_limits.record(LOST, (number, 7))
        retry_limits.prepare_retry(call(), (number + 1, 7))
    retry_limits.record(LOST, (16, 7))
    with pytest.raises(WorkerLost, match=r"17 workers.*step.*JAXD_INLINE=1"):
        retry_limits.prepare_retry(call(), (17, 7))


BUSY = 0.2


def test_callers_come_again_at_different_moments() -> None:
    """Around the time that the server said."""
    pauses = [BusyBackoff(None).pause_s(BUSY) or 0.0 for _ in range(100)]
    assert 0.1 <= min(pauses) < 0.15
    assert 0.25 < max(pauses) <= 0.3


def test_each_time_later_than_the_last() -> None:
    """Everybody may have been told the same; but not for ever later."""
    busy_backoff = BusyBackoff(None)
    pauses = [busy_backoff.pause_s(BUSY) or 0.0 for _ in range(6)]
    assert max(pauses[:1]) < min(pauses[2:])
    assert max(pauses) <= 8 * 0.3


def test_nobody_comes_again_too_late() -> None:
    """After its deadline the caller is told."""
    assert BusyBackoff(time.monotonic() + 0.05).pause_s(BUSY) is None
    assert BusyBackoff(time.monotonic() + 5.0).pause_s(BUSY) is not None
