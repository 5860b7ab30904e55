"""Keeps what is held in memory within its budget: one place decides when, each pool decides what.

Executables register here today; values that stay on the server will. A compiled program of
moderate size on a CPU costs about 8 MB and 150 memory maps, and a process that reaches
`vm.max_map_count` dies, so the maps are a budget of their own.
"""

from __future__ import annotations

import sys
import threading
from typing import Protocol

from jaxd_server.memory import MapGauge, Trimmer, give_back

__all__ = ["Reclaimable", "Reclaimer"]


_LEAST = 8
"""Entries that are dropped at a time."""


class Reclaimable(Protocol):
    """A pool of things that can be made again. Drops nothing that is in use."""

    def __len__(self) -> int:
        """How many entries there are."""

    def shrink(self) -> int:
        """Drops what is above the pool's own limits; returns how many entries that were."""

    def reclaim(self, count: int) -> int:
        """Drops up to `count` entries, those that are missed least; returns how many."""


class Reclaimer:
    """Asks the registered pools to drop entries when a budget is exceeded. Thread-safe.

    Args:
        map_share: of the memory maps that a process may have, how much this one is to use.
        gauge: looks at that.
        trimmer: told when something was dropped.
    """

    def __init__(
        self,
        map_share: float = 0.5,
        gauge: MapGauge | None = None,
        trimmer: Trimmer | None = None,
    ) -> None:
        self._pools: list[Reclaimable] = []
        self._gauge = gauge or MapGauge(map_share)
        self._trimmer = trimmer or Trimmer()
        self._wanted = False
        self._relieving = False
        self._lock = threading.Lock()  # guards _wanted and _relieving: one relief at a time

    def register(self, pool: Reclaimable) -> None:
        """Adds a pool; it is asked from now on."""
        self._pools.append(pool)

    def relieve(self) -> int:
        """Brings every pool within its limits, and the process within its share of memory maps.

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
        dropped = sum(pool.shrink() for pool in self._pools)
        is_high = self._gauge.added()
        while is_high:
            gone = sum(pool.reclaim(max(_LEAST, len(pool) // 16)) for pool in self._pools)
            dropped += gone
            is_high = bool(gone) and self._gauge.is_high()
        if dropped:
            self._trimmer.freed()
        return dropped

    def reclaim_some(self) -> int:
        """Drops an eighth of what is idle; returns how many entries that were."""
        dropped = sum(pool.reclaim(max(_LEAST, len(pool) // 8)) for pool in self._pools)
        if dropped:
            self._trimmer.freed()
        return dropped

    def reclaim_all(self) -> int:
        """Drops everything that is idle; returns how many entries that were.

        Holds up every thread for a moment: for when a call fails otherwise.
        """
        dropped = sum(pool.reclaim(sys.maxsize) for pool in self._pools)
        give_back()
        return dropped
