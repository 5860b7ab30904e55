from __future__ import annotations

from jaxd_server.compilation.compiling.builds import (
    Build,
    check_not_abandoned,
    current_build,
)


def test_elsewhere_nothing_can_be_given_up() -> None:
    """What is built for those who look after a server, for instance."""
    assert current_build() is None
    check_not_abandoned()


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
