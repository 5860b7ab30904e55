"""What a supervisor counts, without processes. With those: test_supervisor.py."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision import supervisor as module
from jaxd_server.processes.supervision.supervisor import (
    MAX_FAILED_STARTS,
    DrainingWorkers,
    RestartPacing,
    Supervisor,
)
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from tests.ids import row
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


def test_deaths_in_a_row_wait_ever_longer_up_to_a_limit() -> None:
    """The first costs no time; then from 0.2 s, doubling, to 10 s. A long life is forgiven."""
    pacing = RestartPacing()
    delays = [pacing.delay_s(1.0, was_ready=True) or 0.0 for _ in range(2000)]
    assert delays[:4] == [0.0, 0.2, 0.4, 0.8]
    assert all(before <= after for before, after in pairwise(delays))
    assert delays[-1] == 10.0
    assert pacing.delay_s(3600.0, was_ready=True) == 0.0
    assert pacing.delay_s(1.0, was_ready=True) == 0.0


def test_it_is_broken_after_failed_starts_in_a_row() -> None:
    """And is tried again ever more seldom, up to every half minute; a good start resets them."""
    pacing = RestartPacing()
    for is_last in (False, True):
        for _ in range(MAX_FAILED_STARTS - 1):
            pacing.delay_s(20.0, was_ready=False)
            assert not pacing.is_broken
        if not is_last:
            pacing.delay_s(0.0, was_ready=True)
    delays = [pacing.delay_s(20.0, was_ready=False) for _ in range(20)]
    assert pacing.is_broken
    assert delays[0] == 1.6
    assert delays[-1] == 30.0


def post_with(**worker: Any) -> Supervisor:
    """A post whose worker is like that."""

    async def answers(patience_s: float) -> bool:
        return True

    post = Supervisor(ServerOptions(), ())
    defaults = {"was_ready": True, "state": "ready", "silent_s": 2.0, "refresh": answers}
    post.worker = cast("Any", SimpleNamespace(**defaults | worker))
    return post


def test_how_long_nobody_has_needed_it() -> None:
    """As the worker says, if it says it in numbers."""
    rows: list[tuple[dict[str, Any], float]] = [
        ({"snapshot": {"idle_s": 7.0}}, 7.0),
        ({"snapshot": {"idle_s": 7.0, "connections": 1}}, 0.0),
        ({"snapshot": {"idle_s": 7.0, "running_calls": 1}}, 0.0),
        ({"snapshot": {"idle_s": 7.0}, "state": "resting"}, 9.0),
        ({"snapshot": {}, "state": "starting", "was_ready": False}, 0.0),
        ({"snapshot": {"idle_s": "long"}}, 0.0),
        ({"snapshot": {"idle_s": 10**400}}, 0.0),
        ({"snapshot": {"idle_s": float("nan")}}, 0.0),
        ({"snapshot": {"idle_s": -1e9}}, 0.0),
        ({"snapshot": {"idle_s": "long"}, "state": "resting"}, 2.0),
    ]
    for worker, idle_s in rows:
        with row((worker, idle_s)):
            assert asyncio.run(post_with(**worker).idle_s()) == idle_s


def test_before_the_first_worker_there_is_little_to_be_said() -> None:
    """And nothing fails."""
    post = Supervisor(ServerOptions(), ())
    assert asyncio.run(post.status()) == {"worker": {}, "worker_state": "starting"}
    assert asyncio.run(post.idle_s()) == 0.0
    assert post.describe() == {"epoch": 0, "worker_pid": None, "restarts": 0, "quarantined": 0}
    assert not post.is_resting
    assert not post.is_stopping
