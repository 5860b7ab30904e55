"""Which executables are evicted first when there are too many, from their sizes and costs.

Least recently used first, by an age that is divided by a weight: one for what is made again within
a second, ten up to ten seconds, a hundred up to a hundred. So what costs about the same goes
strictly by age, and what costs ten times as much is kept ten times as long. Where several
principals share a server, those that hold more than their share come before the others.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be held.

    Attributes:
        count: number of executables.
        host_bytes: of their programs, in the memory of the process.
        device_bytes: of their programs, on the device.
        share: of each of these, what a principal keeps although another one needs room; at most
            an equal part for each.
    """

    count: int
    host_bytes: int = sys.maxsize
    device_bytes: int = sys.maxsize
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """One executable, as far as the choice depends on it.

    Attributes:
        name: what it is called in the table.
        principal: for whom it was made.
        program: names the program that it shares with others, and whose bytes count once.
        host_bytes, device_bytes: what that takes.
        last_use: when it was used last, in seconds of any clock.
        rebuild_s: seconds that it takes to make or load it again.
        is_idle: whether it may be evicted.
    """

    name: Hashable
    principal: str
    program: Hashable
    host_bytes: int
    device_bytes: int
    last_use: float
    rebuild_s: float
    is_idle: bool


def weight(rebuild_s: float) -> float:
    """By what the age of an executable is divided: the next power of ten, at least one."""
    return 10.0 ** max(0, math.ceil(math.log10(max(rebuild_s, 1.0))))


def victims(entries: Iterable[Entry], limits: Limits, now: float) -> list[Entry]:
    """The idle entries to evict so that the others are within the limits.

    Args:
        entries: all that there are, the oldest first where they are of the same age.
        limits: what may stay.
        now: the time, on the clock of `last_use`.
    """
    left = {one.name: one for one in entries}
    gone: list[Entry] = []

    def choose(unit: Callable[[Entry], Hashable], size: Callable[[Entry], int], limit: int) -> None:
        units: dict[Hashable, list[Entry]] = {}
        for one in left.values():
            units.setdefault(unit(one), []).append(one)
        sized = [_Unit(entries, size(entries[0])) for entries in units.values()]
        chosen = _victims_for_limit(sized, limit, limits.share, now)
        gone.extend(left.pop(one.name) for one in chosen)

    choose(lambda one: one.name, lambda one: 1, limits.count)
    choose(lambda one: one.program, lambda one: one.host_bytes, limits.host_bytes)
    choose(lambda one: one.program, lambda one: one.device_bytes, limits.device_bytes)
    return gone


class _Unit:
    """Entries that free something only together."""

    __slots__ = ("entries", "is_idle", "principals", "size")

    def __init__(self, entries: list[Entry], size: int) -> None:
        self.entries = entries
        self.size = size
        self.principals = {one.principal for one in entries}
        self.is_idle = all(one.is_idle for one in entries)

    def age(self, now: float) -> float:
        """Since the last use of any of them, weighted by what is the most expensive to have."""
        last_use = max(one.last_use for one in self.entries)
        return (now - last_use) / weight(max(one.rebuild_s for one in self.entries))


def _victims_for_limit(units: list[_Unit], limit: int, share: float, now: float) -> list[Entry]:
    """What to evict for one limit.

    A unit above the limit alone is evicted first; while it is in use, others make no room for it.
    """
    total = sum(unit.size for unit in units if unit.is_idle or unit.size <= limit)
    held: Counter[str] = Counter()
    for unit in units:
        held.update(dict.fromkeys(unit.principals, unit.size))
    if total <= limit:
        return []
    allowed = limit * min(share, 1 / len(held))
    queue = [unit for unit in units if unit.is_idle and unit.size]
    queue.sort(key=lambda unit: (unit.size <= limit, -unit.age(now)))
    gone: list[Entry] = []
    for only_greedy in (True, False):
        spared = []
        for unit in queue:
            if total <= limit:
                return gone
            if only_greedy and any(held[principal] <= allowed for principal in unit.principals):
                spared.append(unit)  # no share grows here, so this stays true
                continue
            gone += unit.entries
            total -= unit.size
            held.subtract(dict.fromkeys(unit.principals, unit.size))
        queue = spared
    return gone


_MIN_BYTES: Final = 256 << 10
"""What a program takes at least: less than this is not to be seen in the size of a process."""

_LOAD_COST_SHARE: Final = 0.3
"""Seconds that loading takes for each second of tracing and compiling, for a large program."""


class EvictionCosts:
    """Makes the entries from which victims of eviction are chosen.

    Args:
        is_kept: whether an executable is on disk as well, and so is cheap to have again.
        resident: bytes of memory that the process has; 0 where unknown.
    """

    def __init__(self, is_kept: Callable[[Executable], bool], resident: Callable[[], int]) -> None:
        self._is_kept = is_kept
        self._resident = resident
        self._resident_before = resident()

    def entries(
        self,
        items: Sequence[tuple[Hashable, Executable]],
        is_in_use: Callable[[Executable], bool],
    ) -> list[Entry]:
        """What the choice of victims depends on.

        Args:
            items: executables by what the table calls them.
            is_in_use: whether one has to stay.
        """
        sizes = {one.program: host_bytes_of(one.program) for _, one in items}
        # What a program takes is seen in the growth of the process while it was compiled, of which
        # others, at work meanwhile, have a part. Together they cannot have taken more than it grew.
        grown = max(0, self._resident() - self._resident_before)
        scale = min(1.0, grown / max(1, sum(sizes.values()))) if self._resident_before else 1.0
        return [
            Entry(
                name,
                one.principal,
                one.program,
                int(sizes[one.program] * scale),
                one.program.device_bytes,
                one.last_use,
                self._rebuild_s(one),
                not is_in_use(one),
            )
            for name, one in items
        ]

    def _rebuild_s(self, executable: Executable) -> float:
        """Seconds that it takes to make or load it again."""
        costs = executable.costs
        if executable.structure is None:  # it came from disk
            return costs.paid_s
        if costs.build_s > 1 and self._is_kept(executable):
            return executable.program.load_s or costs.build_s * _LOAD_COST_SHARE
        return costs.build_s


def are_within(limits: Limits, executables: Sequence[Executable]) -> bool:
    """Whether nothing has to be evicted; a cheap check after each build."""
    programs = {one.program for one in executables}
    return len(executables) <= limits.count and max(excess_bytes(limits, programs)) <= 0


def excess_bytes(limits: Limits, programs: Collection[Program]) -> tuple[int, int]:
    """By how much programs exceed the limits, on the host and the device; negative: by how little.

    Args:
        limits: what may stay.
        programs: each once.
    """
    return (
        sum(map(host_bytes_of, programs)) - limits.host_bytes,
        sum(one.device_bytes for one in programs) - limits.device_bytes,
    )


def host_bytes_of(program: Program) -> int:
    """What a program counts for: bytes of the host's memory."""
    return max(_MIN_BYTES, program.host_bytes)
