"""Keeps what is held in memory within its budget: one place decides when, each pool decides what.

Executables register here today; values that stay on the server will. A compiled program of
moderate size on a CPU costs about 15 MB and 130 memory maps, and a process that reaches
`vm.max_map_count` dies, so the maps are a budget of their own.
"""

from __future__ import annotations

import gc
import threading
from typing import Protocol

__all__ = ["Reclaimable", "Reclaimer", "map_pressure"]

_MAP_SHARE = 0.5
_DEFAULT_MAX_MAPS = 65530


class Reclaimable(Protocol):
    """A pool of things that can be made again."""

    def surplus(self) -> int:
        """How many entries the pool holds above its own limit."""

    def reclaim(self, count: int) -> int:
        """Drops up to `count` idle entries, the least recently used first; returns how many."""


class Reclaimer:
    """Asks the registered pools to drop entries when a budget is exceeded. Thread-safe."""

    def __init__(self) -> None:
        self._pools: list[Reclaimable] = []
        self._wanted = False
        self._relieving = False
        self._lock = threading.Lock()  # guards _wanted and _relieving: one relief at a time

    def register(self, pool: Reclaimable) -> None:
        """Adds a pool; it is asked from now on."""
        self._pools.append(pool)

    def relieve(self) -> int:
        """Brings every pool within its limit, and the process within its share of memory maps.

        Called after something was added. Returns the number of entries that were dropped; while
        another thread is at it, that one looks once more, and this one returns 0.
        """
        with self._lock:
            self._wanted = True
            if self._relieving:
                return 0
            self._relieving = True
        dropped = 0
        try:
            while self._is_wanted():
                dropped += self._relieve_once()
        except BaseException:
            self._relieving = False  # the next one may try
            raise
        return dropped

    def _is_wanted(self) -> bool:
        """Whether somebody asked since the last look; if nobody did, the relief is over."""
        with self._lock:
            self._relieving, self._wanted = self._wanted, False
            return self._relieving

    def _relieve_once(self) -> int:
        dropped = sum(pool.reclaim(pool.surplus()) for pool in self._pools)
        if map_pressure() > _MAP_SHARE:
            dropped += sum(pool.reclaim(8) for pool in self._pools)
        if dropped:
            gc.collect()  # a dropped program is freed with the cycles that hold it
        return dropped


def map_pressure() -> float:
    """The share of `vm.max_map_count` that this process uses; 0 where there is no such limit."""
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            limit = int(file.read())
    except (OSError, ValueError):
        limit = _DEFAULT_MAX_MAPS
    try:
        with open("/proc/self/maps", "rb") as file:
            return (
                sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 16), b"")) / limit
            )
    except OSError:
        return 0.0
