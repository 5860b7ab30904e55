"""When a builder is started, to whom it is lent, and when it is ended."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jaxd_server.compilation.functions.table import DeadlyFunctions
from jaxd_server.compilation.remote_build.builder_pool import (
    USUAL_LIFETIME,
    BuilderPool,
    Lifetime,
)
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.server.fake_builder import FakeBuilder


class Scenario:
    """A pool with fakes, and a clock that stands still.

    Attributes:
        next: states of those that are started next; `ready` after that.
    """

    def __init__(self, lifetime: Lifetime = USUAL_LIFETIME) -> None:
        self.now = 100.0
        self.started: list[Any] = []
        self.next: list[str] = []
        self.pool = BuilderPool(
            *(Counters(), ImportedPackages(), DeadlyFunctions(), self._start),
            *(lifetime, lambda: self.now),
        )

    def _start(self) -> Any:
        state = self.next.pop(0) if self.next else "ready"
        self.started.append(FakeBuilder(state))
        return self.started[-1]

    def lend(self, *args: Any, **kwargs: Any) -> Any:
        """What the pool lends."""
        return self.pool.lend(*args, **kwargs)


def test_a_builder_has_one_borrower_at_a_time() -> None:
    """That which knows the function is preferred; who needs one that has built nothing gets it."""
    scenario = Scenario()
    first, second = scenario.lend(), scenario.lend()
    assert first is not second
    scenario.pool.give_back(first)
    assert scenario.lend() is first
    second.known.add(b"it")
    second.builds = 1
    for one in (first, second):
        scenario.pool.give_back(one)
    assert scenario.lend(b"it") is second
    scenario.pool.give_back(second)
    assert scenario.lend(unused=True) is first
    assert scenario.lend(unused=True) not in (first, second)


@pytest.mark.parametrize(("builds", "size"), [(3, 0), (0, 11)])
def test_one_that_has_built_enough_or_has_grown_is_ended(builds: int, size: int) -> None:
    """XLA gives nothing back of what it compiles."""
    scenario = Scenario(Lifetime(builds=3, resident=10))
    one = scenario.lend()
    one.builds, one.bytes = builds, size
    scenario.pool.give_back(one)
    assert one.state == "ended"
    assert scenario.lend() is not one


def test_a_long_build_gives_way_to_one_that_begins_beside_it() -> None:
    """And its builder, which cannot have its priority back, is not lent again."""
    scenario = Scenario()
    long, other = scenario.lend(), scenario.lend()
    scenario.now += 1.9
    scenario.pool.give_back(other)
    assert scenario.lend() is other
    assert not long.yields
    scenario.now += 0.2
    third = scenario.lend()
    assert (long.yields, other.yields, third.yields) == (True, False, False)
    scenario.pool.give_back(long)
    assert long.state == "ended"


def test_those_that_nobody_needs_are_ended_after_a_while() -> None:
    """But for the spare ones, of which that used last is kept."""
    scenario = Scenario(Lifetime(idle_s=60.0))
    pair = [scenario.lend(), scenario.lend()]
    for one in pair:
        scenario.pool.give_back(one)
    scenario.now += 59
    scenario.pool.end_idle(keep=0)
    assert [one.state for one in pair] == ["ready", "ready"]
    scenario.now += 2
    scenario.pool.end_idle(keep=1)
    assert [one.state for one in pair] == ["ended", "ready"]
    scenario.pool.end_idle(keep=0)
    assert pair[1].state == "ended"


def test_a_spare_is_started_when_all_are_at_work_for_long() -> None:
    """A short build gives its builder back before. Beside one that works it is without haste."""
    scenario = Scenario()
    started = []
    for after_s, lends in ((0, False), (0, True), (0, False), (1, False)):
        scenario.now += after_s
        scenario.pool.start_spare()
        started.append(len(scenario.started))
        if lends:
            scenario.lend()
    assert started == [1, 1, 1, 2]


def test_who_waits_for_one_that_starts_gets_one_that_comes_back() -> None:
    """Whichever is there first."""
    scenario = Scenario()
    first = scenario.lend()
    scenario.next = ["starting"]

    class Starting(FakeBuilder):
        """Does not get ready while the other one works."""

        def wait(self, check: Any = None) -> bool:
            scenario.pool.give_back(first)
            check()
            return super().wait()

    starting = Starting("starting")
    scenario.pool._idle.append(starting)  # type: ignore[arg-type]
    assert scenario.lend() is first
    assert starting.state == "starting"


def test_starts_that_fail_are_tried_again_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the background, however often a build asks; then all is as before, and told once."""
    caplog.set_level(logging.INFO)
    scenario = Scenario()
    scenario.next = ["ended"] * 9
    assert scenario.lend() is None
    assert len(scenario.started) == 3
    for pause in (0.5, 1, 2, 4, 8, 16):
        scenario.now += pause - 0.1
        assert not scenario.pool.can_lend()
        scenario.now += 0.1
        started = len(scenario.started)
        for _ in range(2):
            assert not scenario.pool.can_lend()
            assert scenario.lend() is None
            scenario.pool.start_spare()
        assert len(scenario.started) == started + 1
    scenario.next = ["starting"]
    scenario.now += 32
    assert not scenario.pool.can_lend()
    assert scenario.lend() is None
    scenario.started[-1].wait()
    assert scenario.pool.can_lend()
    assert scenario.lend() is scenario.started[-1]
    assert len({id(scenario.lend()) for _ in range(3)}) == 3
    told = [record.message for record in caplog.records if "builders_" in record.message]
    assert len(told) == 2
    assert "builders_do_not_start" in told[0]
    assert "builders_start_again" in told[1]


def test_a_pause_has_an_end() -> None:
    """Of a minute, however often it failed."""
    scenario = Scenario()
    scenario.next = ["ended"] * 100
    assert scenario.lend() is None
    for _ in range(50):
        scenario.now += 60
        started = len(scenario.started)
        for _ in range(2):  # that the start has failed is learned by the second one
            assert not scenario.pool.can_lend()
        assert len(scenario.started) == started + 1


def test_closing_ends_the_builders_for_good() -> None:
    """Nothing starts another one."""
    scenario = Scenario()
    lent, idle = scenario.lend(), scenario.lend()
    scenario.pool.give_back(idle)
    scenario.pool.close()
    assert (lent.state, idle.state) == ("ended", "ended")
    assert scenario.lend() is None
    assert len(scenario.started) == 2
