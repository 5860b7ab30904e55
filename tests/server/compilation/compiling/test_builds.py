from __future__ import annotations

import pytest

from jaxd_server.compilation.compiling.builds import (
    Build,
    being_made,
    check_wanted,
    in_turn,
    present_build,
)
from jaxd_server.runtime.threads.fairness import Turnstile
from jaxd_server.user_code.interrupt import Interrupted


def test_elsewhere_nothing_can_be_given_up() -> None:
    """What is built for those who look after a server, for instance."""
    assert present_build() is None
    check_wanted()
    with in_turn(Turnstile(1), "bread"):
        pass


def test_who_works_on_it_is_told_that_nobody_waits() -> None:
    """Once; at once when that is so already; and not any more when it is over."""
    build, told = Build(), []
    with build.telling(lambda: told.append("over")):
        pass
    with build.telling(lambda: told.append("early")):
        build.is_left = True
        build.tell()
        build.tell()
    with build.telling(lambda: told.append("late")):
        pass
    assert told == ["early", "late"]


def test_what_nobody_waits_for_is_not_begun() -> None:
    """It gives its turn back."""
    build, room = Build(), Turnstile(1)
    build.is_left = True
    with being_made(build):
        assert present_build() is build
        with pytest.raises(Interrupted):
            check_wanted()
        with pytest.raises(Interrupted), in_turn(room, "bread"):
            pass
    assert (build.begun, present_build()) == (None, None)
    assert room.enter(None)
