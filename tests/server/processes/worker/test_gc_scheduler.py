from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import gc_scheduler
from jaxd_server.processes.worker.gc_scheduler import GcScheduler
from tests.server.admitted import admitted


@pytest.fixture
def admission() -> Iterator[Admission]:
    """Its process is afterwards what it was before."""
    interval = sys.getswitchinterval()
    yield Admission()
    sys.setswitchinterval(interval)
    gc.unfreeze()
    gc.enable()


def make_garbage(count: int) -> None:
    """Objects that only the collector can free."""
    for _ in range(count):
        cycle: list[object] = []
        cycle.append(cycle)


def test_python_no_longer_collects_by_itself(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the scheduler does, and the switch interval is short."""
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    GcScheduler(admission).start()
    assert not gc.isenabled()
    assert sys.getswitchinterval() < 1e-4
    assert started == ["jaxd-housekeeper"]


@pytest.mark.slow
def test_garbage_is_collected_when_nobody_waits(admission: Admission) -> None:
    """Not while a call is running, and not for a few objects."""
    scheduler = GcScheduler(admission)
    gc.collect()
    gc.disable()
    assert not scheduler.poll()
    make_garbage(10_000)
    running = admitted(admission, "f")
    assert not scheduler.poll()
    admission.release(running)
    assert scheduler.poll()
    assert gc.get_count()[0] < 5_000


class Tracked:
    """Says when it is freed."""


@pytest.mark.slow
def test_old_garbage_is_collected_when_nobody_has_called_for_a_while(admission: Admission) -> None:
    """What outlived a look at what is new takes a look at everything, which takes longer."""
    scheduler = GcScheduler(admission)
    gc.collect()
    gc.disable()
    cycle = Tracked()
    cycle.itself = cycle  # type: ignore[attr-defined]
    freed = weakref.ref(cycle)
    for _ in range(2):
        make_garbage(10_000)
        assert scheduler.poll()
    del cycle
    assert freed() is not None
    collected = [scheduler.poll() for _ in range(20)]
    assert collected.count(True) == 1
    assert freed() is None


@pytest.mark.slow
def test_garbage_is_collected_in_the_end(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when there is always a call, once there is very much of it."""
    monkeypatch.setattr(gc_scheduler, "_TOO_MANY", 9_000)
    scheduler = GcScheduler(admission)
    gc.collect()
    gc.disable()
    admitted(admission, "f")
    make_garbage(10_000)
    assert scheduler.poll()


def test_chores_are_done_from_time_to_time(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less often than polls."""
    monkeypatch.setattr(gc_scheduler, "_POLL_S", 0.001)
    monkeypatch.setattr(gc_scheduler, "_CHORES", 3)
    polls: list[int] = []

    def chore() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        GcScheduler(admission, chore, lambda: polls.append(1))._work()
    assert len(polls) == 3
