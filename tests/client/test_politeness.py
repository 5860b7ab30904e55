from __future__ import annotations

import time

from jaxd.politeness import Politeness
from jaxd_protocol.calls import FAILED, OK
from jaxd_protocol.errors import Busy, ServerDraining
from jaxd_protocol.failures import describe_failure

BUSY = (FAILED, describe_failure(Busy("full.", retry_after_s=0.2)))


def test_callers_come_again_at_different_moments() -> None:
    """Around the time that the server said."""
    pauses = [Politeness(None).pause_s(BUSY) or 0.0 for _ in range(100)]
    assert 0.1 <= min(pauses) < 0.15
    assert 0.25 < max(pauses) <= 0.3


def test_each_time_later_than_the_last() -> None:
    """Everybody may have been told the same; but not for ever later."""
    politeness = Politeness(None)
    pauses = [politeness.pause_s(BUSY) or 0.0 for _ in range(6)]
    assert max(pauses[:1]) < min(pauses[2:])
    assert max(pauses) <= 8 * 0.3


def test_nobody_comes_again_too_late() -> None:
    """After its deadline the caller is told."""
    assert Politeness(time.monotonic() + 0.05).pause_s(BUSY) is None
    assert Politeness(time.monotonic() + 5.0).pause_s(BUSY) is not None


def test_only_a_busy_server_is_asked_again() -> None:
    """Anything else is the caller's to know."""
    politeness = Politeness(None)
    assert politeness.pause_s((OK, b"", b"")) is None
    assert politeness.pause_s((FAILED, describe_failure(ServerDraining("stops.")))) is None
