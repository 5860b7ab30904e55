from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from jaxd_server.runtime import memory_reclaimer as module
from jaxd_server.runtime.memory_reclaimer import MemoryPressure, Reclaimer
from jaxd_server.runtime.system_memory import MapGauge, Trimmer
from tests.server.staging import Log, logged_by


class Pool:
    """Holds as many entries as it is told to."""

    def __init__(self, held: int, limit: int) -> None:
        self.held = held
        self.limit = limit
        self.asked: list[int] = []

    def __len__(self) -> int:
        """How many there are."""
        return self.held

    def shrink(self) -> int:
        """Drops what is above the limit."""
        return self.reclaim(max(0, self.held - self.limit))

    def reclaim(self, count: int) -> int:
        """Drops that many, as far as there are any."""
        self.asked.append(count)
        dropped = min(count, self.held)
        self.held -= dropped
        return dropped


class Trims(Trimmer):
    """Counts how often it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    def freed(self) -> None:
        """Something was."""
        self.told += 1


def test_each_pool_is_brought_within_its_own_limit() -> None:
    """Who returns the memory is told once for all, if anything was dropped; no call is held up."""
    trims = Trims()
    reclaimer = Reclaimer(trimmer=trims)
    pools = [Pool(2, 3), Pool(3, 3)]
    for pool in pools:
        reclaimer.register(pool)
    assert (reclaimer.relieve(), trims.told) == (0, 0)
    pools[0].held = 9
    runs = gc.get_stats()[2]["collections"]
    assert reclaimer.relieve() == 6
    assert [pool.held for pool in pools] == [3, 3]
    assert gc.get_stats()[2]["collections"] == runs
    assert trims.told == 1


def test_a_process_short_of_memory_maps_drops_until_it_is_not() -> None:
    """Some of each pool, although each is within its limit: at the end of the maps it would die."""
    pool = Pool(1000, 2000)
    reclaimer = Reclaimer(gauge=MapGauge(0.5, lambda: pool.held / 1600), trimmer=Trims())
    reclaimer.register(pool)
    assert reclaimer.relieve() == 1000 - pool.held
    assert 740 < pool.held <= 800
    assert min(pool.asked[1:]) >= 8
    empty = Pool(0, 5)  # what is in use is all that there is, and the build goes on
    reclaimer = Reclaimer(gauge=MapGauge(0.5, lambda: 0.9), trimmer=Trims())
    reclaimer.register(empty)
    assert (reclaimer.relieve(), empty.asked) == (0, [0, 8])


def test_the_share_of_maps_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--map-share` reaches the one who looks."""
    shares: list[float] = []
    monkeypatch.setattr(module, "MapGauge", shares.append)
    Reclaimer(0.25)
    assert shares == [0.25]


def test_everything_idle_goes_in_an_emergency(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the memory goes back at once, cycles and all: a call waits for it."""
    returned: list[None] = []
    monkeypatch.setattr(module, "release_memory", lambda: returned.append(None))
    reclaimer = Reclaimer()
    pool = Pool(5, 9)
    reclaimer.register(pool)
    assert reclaimer.reclaim_all() == 5
    assert pool.asked == [sys.maxsize]
    assert returned == [None]


def test_who_comes_during_a_relief_does_not_wait_and_is_not_forgotten() -> None:
    """The one that is at it looks once more."""
    reclaimer = Reclaimer(trimmer=Trims())

    class Growing(Pool):
        def reclaim(self, count: int) -> int:
            dropped = super().reclaim(count)
            if len(self.asked) == 1:
                self.held += 3  # another thread builds and comes to be relieved
                assert reclaimer.relieve() == 0
            return dropped

    pool = Growing(5, 3)
    reclaimer.register(pool)
    assert reclaimer.relieve() == 5
    assert pool.held == 3
    assert reclaimer.relieve() == 0


def test_a_relief_that_fails_does_not_prevent_the_next() -> None:
    """The error is its own."""
    reclaimer = Reclaimer(trimmer=Trims())

    class Failing(Pool):
        def shrink(self) -> int:
            if self.held == 5:
                self.held += 1
                raise RuntimeError
            return super().shrink()

    reclaimer.register(Failing(5, 3))
    with pytest.raises(RuntimeError):
        reclaimer.relieve()
    assert reclaimer.relieve() == 3


# short of memory ---------------------------------------------------------------------------------


class Machine:
    """One whose memory the test decides about."""

    def __init__(self, limit: float = 0.9) -> None:
        self.now = self.host = self.device = 0.0
        self.own = 0.5
        self.pool = Pool(80, 80)
        reclaimer = Reclaimer()
        reclaimer.register(self.pool)
        looks: list[Callable[[], float]] = [
            lambda: self.host,
            lambda: self.device,
            lambda: self.own,
            lambda: self.now,
        ]
        self.pressure = MemoryPressure(reclaimer, limit, *looks)

    def poll(self, host: float = 0.0, device: float = 0.0) -> int:
        """A second later; how much is left."""
        self.now += 1.0
        self.host, self.device = host, device
        self.pressure.poll()
        return self.pool.held


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is logged of it."""
    return logged_by(module, monkeypatch)


def test_what_is_idle_goes_a_part_at_a_time(log: Log) -> None:
    """Once a second, until there is room with some to spare; logged at the start and at the end."""
    machine = Machine()
    assert [machine.poll(0.89), machine.poll(0.91)] == [80, 70]
    for _ in range(5):
        machine.pressure.poll()
    assert [machine.poll(0.88), machine.poll(0.86)] == [62, 62]
    said = [(event, fields["dropped"]) for event, fields in log]
    assert said == [("memory_short", 10), ("memory_relieved", 18)]


def test_what_is_dropped_helps(log: Log) -> None:
    """The device is watched as well; not a process that has next to nothing, and not unasked."""
    assert Machine().poll(0.1, device=0.95) == 70
    small = Machine()
    small.own = 0.05
    assert small.poll(0.99) == 80
    assert Machine(limit=0.0).poll(1.0, device=1.0) == 80
