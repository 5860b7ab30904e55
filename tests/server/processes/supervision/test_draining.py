from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import pytest

from jaxd_server.processes.supervision import draining as module
from jaxd_server.processes.supervision.draining import DrainingWorkers
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
