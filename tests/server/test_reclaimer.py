from __future__ import annotations

import gc
import mmap
import sys

import pytest

from jaxd_server import reclaimer as module
from jaxd_server.reclaimer import Reclaimer, map_pressure


class Pool:
    """Holds as many entries as it is told to."""

    def __init__(self, held: int, limit: int) -> None:
        self.held = held
        self.limit = limit
        self.asked: list[int] = []

    def surplus(self) -> int:
        """What is above the limit."""
        return max(0, self.held - self.limit)

    def reclaim(self, count: int) -> int:
        """Drops that many, as far as there are any."""
        self.asked.append(count)
        dropped = min(count, self.held)
        self.held -= dropped
        return dropped


def test_each_pool_is_brought_within_its_own_limit() -> None:
    """Those that are within it lose nothing."""
    reclaimer = Reclaimer()
    pools = [Pool(5, 3), Pool(2, 3)]
    for pool in pools:
        reclaimer.register(pool)
    assert reclaimer.relieve() == 2
    assert [pool.held for pool in pools] == [3, 2]


def test_nothing_is_dropped_without_need() -> None:
    """Nor is the garbage collector run."""
    reclaimer = Reclaimer()
    reclaimer.register(Pool(3, 3))
    runs = [stage["collections"] for stage in gc.get_stats()]
    assert reclaimer.relieve() == 0
    assert gc.get_stats()[2]["collections"] == runs[2]


def test_a_process_short_of_memory_maps_drops_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of each pool, although each is within its limit: at the end of the maps it would die."""
    monkeypatch.setattr(module, "map_pressure", lambda: 0.6)
    reclaimer = Reclaimer()
    pool = Pool(20, 30)
    reclaimer.register(pool)
    assert reclaimer.relieve() == 8
    assert pool.held == 12


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_pressure_counts_the_maps_of_this_process() -> None:
    """As a share of what the system allows."""
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        limit = int(file.read())
    before = map_pressure()
    maps = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(200)]
    after = map_pressure()
    for one in maps:
        one.close()
    assert 0 < before < after < 1
    assert 150 < (after - before) * limit < 400


def test_without_proc_there_is_no_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems have no such limit."""

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert map_pressure() == 0.0


def test_who_comes_during_a_relief_does_not_wait_and_is_not_forgotten() -> None:
    """The one that is at it looks once more."""
    reclaimer = Reclaimer()

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
    reclaimer = Reclaimer()

    class Failing(Pool):
        def surplus(self) -> int:
            if self.held == 5:
                self.held += 1
                raise RuntimeError
            return super().surplus()

    reclaimer.register(Failing(5, 3))
    with pytest.raises(RuntimeError):
        reclaimer.relieve()
    assert reclaimer.relieve() == 3
