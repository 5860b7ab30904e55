"""Keeps memory within its budget: decides when to reclaim; each registered pool decides what.

A compiled program of moderate size on a CPU costs about 8 MB and 150 memory maps, and a process
that reaches `vm.max_map_count` dies, so the maps are a budget of their own.

The memory of machine and device is monitored, and reclaimed before it is exhausted: swapping, or
the end of a container, would harm all clients. Only entries that can be made again are dropped:
contents that clients may send again, and the cheapest executables, see `eviction`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import (
    MapGauge,
    Trimmer,
    host_use,
    machine_bytes,
    release_memory,
    resident_bytes,
)

_MIN_RECLAIMED = 8
"""The least number of entries that are dropped at a time."""


class Reclaimable(Protocol):
    """A pool of entries that can be made again. It drops none that is in use."""

    def __len__(self) -> int:
        """The number of entries."""

    def shrink(self) -> int:
        """Drops entries beyond the pool's own limits; returns how many."""

    def reclaim(self, count: int) -> int:
        """Drops up to `count` entries, the cheapest ones; returns how many."""


class Reclaimer:
    """Asks the registered pools to drop entries when a budget is exceeded. Thread-safe.

    Args:
        map_share: the share of the allowed memory maps that this process may use.
        gauge: measures that.
        trimmer: called when entries were dropped.
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
        """Adds a pool."""
        self._pools.append(pool)

    def relieve(self) -> int:
        """Brings every pool within its limits, and the process within its share of memory maps.

        Called after an entry was added. Returns the number of dropped entries; while another
        thread reclaims, that one checks once more, and this one returns 0.
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
            self._relieving = False  # the next call may try
            raise
        return dropped

    def _is_wanted(self) -> bool:
        """Whether `relieve` was called in between; if not, the relief is over."""
        with self._lock:
            self._relieving, self._wanted = self._wanted, False
            return self._relieving

    def _relieve_once(self) -> int:
        dropped = sum(pool.shrink() for pool in self._pools)
        is_high = self._gauge.added()
        while is_high:
            gone = self._reclaim(16)
            dropped += gone
            is_high = bool(gone) and self._gauge.is_high()
        if dropped:
            self._trimmer.freed()
        return dropped

    def reclaim_some(self) -> int:
        """Drops an eighth of the idle entries; returns how many."""
        dropped = self._reclaim(8)
        if dropped:
            self._trimmer.freed()
        return dropped

    def _reclaim(self, part: int) -> int:
        """Drops one of so many idle entries, but not too few; returns how many."""
        return sum(pool.reclaim(max(_MIN_RECLAIMED, len(pool) // part)) for pool in self._pools)

    def reclaim_all(self) -> int:
        """Drops all idle entries; returns how many.

        It delays every thread for a moment: for a call that fails otherwise.
        """
        dropped = sum(pool.reclaim(sys.maxsize) for pool in self._pools)
        release_memory()
        return dropped


_POLL_S: Final = 1.0
_RELIEF_MARGIN: Final = 0.03
"""Pressure ends when use is so much below the limit: a hysteresis."""

_OWN_SHARE: Final = 0.1
"""A process with a smaller share of the machine's memory reclaims nothing."""


class MemoryPressure:
    """Drops some idle entries whenever memory is short. For one thread.

    Args:
        reclaimer: asks the pools.
        limit: share of the memory in use above which entries are dropped; 0: never.
        host: the share in use on the machine.
        device: the same on the device; 0 where unknown, as on a CPU.
        own: the share of the machine's memory that this process has.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        reclaimer: Reclaimer,
        limit: float,
        host: Callable[[], float] = host_use,
        device: Callable[[], float] = lambda: 0.0,
        own: Callable[[], float] = lambda: resident_bytes() / machine_bytes(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reclaimer = reclaimer
        self._limit = limit
        self._host = host
        self._device = device
        self._own = own
        self._clock = clock
        self._polled_at = clock()
        self._is_high = False
        self._dropped = 0

    def poll(self) -> None:
        """Drops entries when memory is short; to be called often, checks once a second."""
        now = self._clock()
        if not self._limit or now - self._polled_at < _POLL_S:
            return
        self._polled_at = now
        host = self._host() if self._own() >= _OWN_SHARE else 0.0
        device = self._device()
        if max(host, device) >= self._limit - (_RELIEF_MARGIN if self._is_high else 0.0):
            self._relieve(host, device)
        elif self._is_high:
            log_event("memory_relieved", host=_percent(host), dropped=self._dropped)
            self._is_high, self._dropped = False, 0

    def _relieve(self, host: float, device: float) -> None:
        dropped = self._reclaimer.reclaim_some()
        self._dropped += dropped
        if not self._is_high:
            self._is_high = True
            log_event(
                "memory_short",
                host=_percent(host),
                device=_percent(device),
                dropped=dropped,
            )


def _percent(share: float) -> str:
    return f"{share:.0%}"
