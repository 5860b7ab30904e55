"""Keeps memory within its budget: decides when, while each registered pool decides what.

A compiled program of moderate size on a CPU costs about 8 MB and 150 memory maps, and a process
that reaches `vm.max_map_count` dies, so the maps are a budget of their own.

The memory of machine and device is watched, and reclaimed before it is exhausted: a machine that
swaps, or a container that is killed, harms all clients. Only what can be made again is dropped:
contents that clients may send again, and the executables that are missed least, see `eviction`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.memory import (
    MapGauge,
    Trimmer,
    machine_bytes,
    release_memory,
    resident_bytes,
)

_MIN_RECLAIMED = 8
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
        trimmer: called when something was dropped.
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
        """Whether `relieve` was called meanwhile; if not, the relief is over."""
        with self._lock:
            self._relieving, self._wanted = self._wanted, False
            return self._relieving

    def _relieve_once(self) -> int:
        dropped = sum(pool.shrink() for pool in self._pools)
        is_high = self._gauge.added()
        while is_high:
            gone = sum(pool.reclaim(max(_MIN_RECLAIMED, len(pool) // 16)) for pool in self._pools)
            dropped += gone
            is_high = bool(gone) and self._gauge.is_high()
        if dropped:
            self._trimmer.freed()
        return dropped

    def reclaim_some(self) -> int:
        """Drops an eighth of what is idle; returns how many entries that were."""
        dropped = sum(pool.reclaim(max(_MIN_RECLAIMED, len(pool) // 8)) for pool in self._pools)
        if dropped:
            self._trimmer.freed()
        return dropped

    def reclaim_all(self) -> int:
        """Drops everything that is idle; returns how many entries that were.

        Holds up every thread for a moment: for when a call fails otherwise.
        """
        dropped = sum(pool.reclaim(sys.maxsize) for pool in self._pools)
        release_memory()
        return dropped


_POLL_S: Final = 1.0
_RELIEF_MARGIN: Final = 0.03
"""It is over when use has sunk by so much below the limit, so that it does not come and go."""

_OWN_SHARE: Final = 0.1
"""A process that has less of the machine's memory than this cannot help it."""

_CGROUP: Final = "/sys/fs/cgroup"


def host_use(root: str = _CGROUP, meminfo: str = "/proc/meminfo") -> float:
    """The share of the memory of machine or container that is in use: 0 where unknown."""
    return max((1 - spare / total for spare, total in _sizes(root, meminfo)), default=0.0)


def host_spare(root: str = _CGROUP, meminfo: str = "/proc/meminfo") -> int:
    """Available bytes of it; `sys.maxsize` where unknown."""
    return min((spare for spare, _ in _sizes(root, meminfo)), default=sys.maxsize)


def _sizes(root: str, meminfo: str) -> Iterator[tuple[int, int]]:
    """Of machine and container: available bytes, and all."""
    with suppress(OSError, ValueError, IndexError, KeyError):
        rows = _read(meminfo).splitlines()
        sizes = {row.split(":")[0]: int(row.split()[1]) << 10 for row in rows}
        yield sizes["MemAvailable"], sizes["MemTotal"]
    for folder, limit, used, idle in _CONTAINERS:
        with suppress(OSError, ValueError, IndexError):
            most = int(_read(f"{root}/{folder}{limit}"))  # "max" where there is none
            rows = _read(f"{root}/{folder}memory.stat").splitlines()
            # without what the system drops by itself: files that were read and are not in use
            spare = {row.split()[0]: int(row.split()[1]) for row in rows}.get(idle, 0)
            taken = max(0, int(_read(f"{root}/{folder}{used}")) - spare)
            yield max(0, most - taken), most
            return


_CONTAINERS: Final = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""In the two versions of cgroups."""


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


class MemoryPressure:
    """Drops some idle entries whenever memory is short. For one thread.

    Args:
        reclaimer: asks the pools.
        limit: share of the memory in use from which on room is made; 0: never.
        host: what the share is on the machine.
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
        """Makes some room when there is little; to be called often, looks once a second."""
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
                level=logging.WARNING,
                host=_percent(host),
                device=_percent(device),
                dropped=dropped,
            )


def _percent(share: float) -> str:
    return f"{share:.0%}"
