from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, ClassVar, cast

import pytest

from jaxd_server.processes.supervision import supervisor as module
from jaxd_server.processes.supervision.supervisor import (
    MAX_FAILED_STARTS,
    DrainingWorkers,
    RestartPacing,
)
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from tests.server.staging import logged_by

PATIENCE_S = 30.0


def test_a_running_call_may_take_as_long_as_it_likes() -> None:
    """However short the patience with a worker that reports none."""

    class Busy:
        """Says three times that a call is running, and has ended then."""

        snapshot: ClassVar = {"running_calls": 1}

        def __init__(self) -> None:
            self.exited = asyncio.Event()
            self.asked = 0

        async def refresh(self, patience_s: float) -> bool:
            self.asked += 1
            if self.asked == 3:
                self.exited.set()
            return True

    async def drained() -> None:
        worker = cast("WorkerProcess", Busy())
        retiring = DrainingWorkers(0.0, lambda: False)
        await retiring.until_drained(worker, lambda: pytest.fail("it was killed"))

    asyncio.run(drained())


class Quiet:
    """A worker that runs no call, and ends when it is killed."""

    what, pid, epoch, principal, lived_s = "worker", 7, 1, None, 2.0
    ending: ClassVar[dict[str, Any]] = {"signal": "SIGKILL"}
    snapshot: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self.is_closed = False

    async def refresh(self, patience_s: float) -> bool:
        return True

    async def read_remaining(self) -> None:
        """It has said nothing."""

    def kill(self) -> None:
        self.exited.set()

    def close(self) -> None:
        self.is_closed = True


def test_workers_are_counted_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was followed and hangs, and one that was never needed; of each it is said how."""
    lines = logged_by(module, monkeypatch)

    async def play() -> list[Quiet]:
        quiet = [Quiet(), Quiet()]
        one, other = (cast("WorkerProcess", each) for each in quiet)
        retiring = DrainingWorkers(0.0, lambda: False)
        await retiring.are_gone()
        retiring.retire(one)
        retiring.dismiss(other)
        assert retiring.workers() == [one, other]
        await asyncio.wait_for(retiring.are_gone(), PATIENCE_S)
        assert retiring.workers() == []
        return quiet

    assert all(each.is_closed for each in asyncio.run(play()))
    said = [event for event, _ in lines]
    assert sorted(said) == ["drain_timed_out", "worker_exited", "worker_exited"]


def test_nobody_gives_up_on_what_is_killed_anyway() -> None:
    """A second time it would only be said."""

    async def play() -> None:
        worker = Quiet()
        retiring = DrainingWorkers(0.0, lambda: True)
        task = asyncio.create_task(
            retiring.until_drained(cast("WorkerProcess", worker), lambda: pytest.fail("again"))
        )
        await asyncio.sleep(0)
        worker.kill()
        await asyncio.wait_for(task, PATIENCE_S)

    asyncio.run(play())


def test_the_first_death_costs_no_time() -> None:
    """Callers should notice it as little as possible."""
    assert RestartPacing().delay_s(0.1, was_ready=True) == 0.0


def test_deaths_in_a_row_wait_ever_longer_up_to_a_limit() -> None:
    """From 0.2 s, doubling, to 10 s and never more."""
    pacing = RestartPacing()
    delays = [pacing.delay_s(1.0, was_ready=True) or 0.0 for _ in range(2000)]
    assert delays[:4] == [0.0, 0.2, 0.4, 0.8]
    assert all(before <= after for before, after in pairwise(delays))
    assert delays[-1] == 10.0


def test_a_worker_that_lived_well_is_forgiven() -> None:
    """After a long life the count begins anew."""
    pacing = RestartPacing()
    for _ in range(3):
        pacing.delay_s(1.0, was_ready=True)
    assert pacing.delay_s(3600.0, was_ready=True) == 0.0
    assert pacing.delay_s(1.0, was_ready=True) == 0.0


def test_it_is_broken_after_failed_starts_in_a_row() -> None:
    """And is tried again ever more seldom, up to every half minute."""
    pacing = RestartPacing()
    for _ in range(MAX_FAILED_STARTS - 1):
        pacing.delay_s(20.0, was_ready=False)
        assert not pacing.is_broken
    delays = [pacing.delay_s(20.0, was_ready=False) for _ in range(20)]
    assert pacing.is_broken
    assert delays[0] == 1.6
    assert delays[-1] == 30.0


def test_one_good_start_resets_the_failed_ones() -> None:
    """Only failures in a row count."""
    pacing = RestartPacing()
    for _ in range(MAX_FAILED_STARTS - 1):
        pacing.delay_s(0.0, was_ready=False)
    pacing.delay_s(0.0, was_ready=True)
    pacing.delay_s(0.0, was_ready=False)
    assert not pacing.is_broken
