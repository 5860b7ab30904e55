from __future__ import annotations

import pytest

from jaxd_server.compilation.compiling.builds import (
    Build,
    as_current_build,
    build_turn,
    check_not_abandoned,
    current_build,
)
from jaxd_server.runtime.threads.fairness import FairSemaphore
from jaxd_server.user_code.interrupt import Interrupted


def test_elsewhere_nothing_can_be_given_up() -> None:
    """What is built for those who look after a server, for instance."""
    assert current_build() is None
    check_not_abandoned()
    with build_turn(FairSemaphore(1), "bread"):
        pass


def test_who_works_on_it_is_told_that_nobody_waits() -> None:
    """Once; at once when that is so already; and not any more when it is over."""
    build, told = Build(), []
    with build.cancel_hook(lambda: told.append("over")):
        pass
    with build.cancel_hook(lambda: told.append("early")):
        build.is_abandoned = True
        build.notify()
        build.notify()
    with build.cancel_hook(lambda: told.append("late")):
        pass
    assert told == ["early", "late"]


def test_what_nobody_waits_for_is_not_begun() -> None:
    """It gives its turn back."""
    build, room = Build(), FairSemaphore(1)
    build.is_abandoned = True
    with as_current_build(build):
        assert current_build() is build
        with pytest.raises(Interrupted):
            check_not_abandoned()
        with pytest.raises(Interrupted), build_turn(room, "bread"):
            pass
    assert (build.begun, current_build()) == (None, None)
    assert room.enter(None)
