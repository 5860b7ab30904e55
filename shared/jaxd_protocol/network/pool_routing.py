"""Which member of a pool answers a call: rendezvous hashing of the key, with bounded load.

Each key has an order of all members, which follows from the key and the names alone. So a function
is warm on the first few members of its order, wherever its clients are; and when a member comes or
goes, only those keys move that have it in the first place. The bound keeps a function that is
called more often than one member can answer from waiting there: its calls go on to the next of its
order.

All clients that call a function have the same loads before them, until they are told others. So
that they do not all choose the same member meanwhile, a function that has several calls open in the
pool is *spread*: each of its calls goes to one of its first members by chance, of as many as it
needs (`Spreads`).

An order is comparing the bytes of digests: equal on every machine, in every process and with every
version of Python. It costs a digest for each member, so a caller keeps it for each key and view of
the pool; a choice costs a look at the first members of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import ceil
from random import random
from typing import Any, Final, NamedTuple, Protocol

BOUND: Final = 1.25
"""So many times its share of all open calls a member may have before the next one is chosen."""

SPREAD: Final = 1.5
"""So many members, for each call that a function has open in the pool, make its calls."""

SPREAD_EVERY_S: Final = 1.0
"""How often it is looked at how many calls each function has open."""

_ALONE: Final = 1.25
"""One with fewer calls open is not spread: one client may make them, one after the other."""

_LEAST_OPEN: Final = 0.05
"""Of a function with fewer calls open at a member, on average, that member says nothing."""

_MOST_BUSY: Final = 32
"""Functions that a member tells of: those with the most open calls."""

_QUIET_S: Final = 10.0
"""A function of which no call has ended for so long counts no more."""

_FORGOTTEN: Final = 0.2
"""So much of the difference to fewer open calls counts each time; to more, all of it."""

_STEP: Final = 0.25
"""A function is spread over fewer members when they are fewer by so much."""

_MOST_SPREAD: Final = 512
"""Functions that are spread at a time: those with the most open calls."""

_BYTES: Final = 8
"""Of a number that a member draws; they are compared as they are, the first byte first."""
_ONE_EACH: Final[Mapping[str, int]] = {}
_NO_CALLS: Final = 0.0, 0.0


class Loads(Protocol):
    """Open calls by member; a mapping is one."""

    def get(self, name: str, default: int, /) -> int:
        """Those of one member."""


def ranked(key: bytes, names: Sequence[str], devices: Mapping[str, int] | None = None) -> list[str]:
    """The members in the order in which calls of a key go to them.

    Each member draws a number for each of its devices, and its largest one counts; the member with
    the largest number is first. So a member with four devices is first for four times as many keys
    as one with one device, and a change moves keys only to the member that changed, or from it.

    Args:
        key: of the function.
        names: of the members, each once, in any order.
        devices: how many devices a member has, where that is not one; none counts as one.

    Returns:
        all names; equal for equal keys and members, in whatever order the names are given.
    """
    prefix = len(key).to_bytes(4, "big") + key
    counts = _ONE_EACH if devices is None else devices
    drawn = [(_largest_draw(prefix + name.encode(), counts.get(name, 1)), name) for name in names]
    drawn.sort(reverse=True)
    return [name for _, name in drawn]


def _largest_draw(text: bytes, draws: int) -> bytes:
    """Of so many numbers, one at least; a digest has eight of them, and further ones have more."""
    digest = blake2b(text).digest()
    if draws <= 1:
        return digest[:_BYTES]
    for block in range(1, -(-draws * _BYTES // len(digest))):
        digest += blake2b(text, salt=block.to_bytes(_BYTES, "big")).digest()
    return max(digest[at : at + _BYTES] for at in range(0, draws * _BYTES, _BYTES))


def choose(
    order: Sequence[str],
    loads: Loads,
    bound: float = BOUND,
    *,
    least: int = 1,
    drawn: Sequence[str] = (),
    total_load: int | None = None,
    devices: Mapping[str, int] | None = None,
    total_devices: int | None = None,
) -> str:
    """The member that the next call of a key goes to: the first whose load is below its limit.

    Of a key that is spread, the less loaded one of those drawn, if that is below its limit. A limit
    is `bound` times the member's share of all open calls, the next one among them, rounded up. So
    never all members have reached theirs, unless `total_load` is less than there is; then it is the
    member with the least load for its devices.

    Args:
        order: what `ranked` returned, or those of it that take calls; not empty.
        loads: open calls of each member that has any.
        bound: 1 or more; the closer to 1, the more even the load, and the more members each
            function gets warm on.
        least: so many open calls for each device are within every limit, also where the pool has
            little to do.
        drawn: what `draw` returned for this call.
        total_load: the sum of the loads of `order`, if the caller keeps it; else it is added up,
            which costs a look at each member.
        devices: how many devices a member has, where that is not one; none counts as one.
        total_devices: the sum of the devices of `order`, if the caller keeps it.

    Raises:
        ValueError: when the order is empty.
    """
    if not order:
        raise ValueError("No member of the pool takes calls; look at jaxd pool status.")
    counts = _ONE_EACH if devices is None else devices
    if total_load is None:
        total_load = sum(loads.get(name, 0) for name in order)
    if total_devices is None:
        total_devices = len(order) if devices is None else _total(order, devices)
    share = max(least, bound * (total_load + 1) / total_devices)
    if drawn:
        best = min(drawn, key=lambda name: _load_of(name, loads, counts))
        if _load_of(best, loads, counts) < share:
            return best
    for name in order:
        if loads.get(name, 0) < ceil(share * (counts.get(name, 1) or 1)):
            return name
    return min(order, key=lambda name: _load_of(name, loads, counts))


def draw(order: Sequence[str], spread: int, chance: Callable[[], float] = random) -> Sequence[str]:
    """Two of the first members of a key that is spread, for one call; none of one that is not.

    Args:
        order: what `ranked` returned, or those of it that take calls.
        spread: over how many of them; 1: it is not.
        chance: gives numbers from 0 to 1, and never 1.
    """
    most = min(spread, len(order))
    if most <= 1:
        return ()
    return order[int(chance() * most)], order[int(chance() * most)]


def _load_of(name: str, loads: Loads, devices: Mapping[str, int]) -> float:
    """For each of its devices."""
    return loads.get(name, 0) / (devices.get(name, 1) or 1)


class Busy(NamedTuple):
    """The calls of a function in a second or more.

    Attributes:
        calls: how many were open, on average.
        seconds: that one took.
    """

    calls: float
    seconds: float


class FunctionLoads:
    """How many calls of each function a member has open, from totals that it counts anyway."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int, float]] = {}
        self._found: dict[str, Busy] = {}

    def update(self, now: float, totals: Mapping[str, tuple[int, float]]) -> Mapping[str, Busy]:
        """The busiest functions; to be called every `SPREAD_EVERY_S`.

        Calls count when they have ended, for the time since others did: so one that takes long is
        no more than one.

        Args:
            now: seconds that only grow.
            totals: of each function how many calls have ended, and how many seconds these took.
        """
        found = {}
        for key, (count, seconds) in totals.items():
            at, before, before_s = self._last.get(key, (now, count, seconds))
            if count > before and now > at:
                spent = seconds - before_s
                found[key] = Busy(spent / (now - at), spent / (count - before))
            elif count == before and now - at < _QUIET_S and key in self._found:
                found[key] = self._found[key]
                continue
            elif count == before and key in self._last:
                continue
            self._last[key] = now, count, seconds
        for gone in self._last.keys() - totals.keys():
            del self._last[gone]
        self._found = found
        busy = [key for key in found if found[key].calls >= _LEAST_OPEN]
        return {key: found[key] for key in _largest(found, busy, _MOST_BUSY)}


def _largest(figures: Mapping[str, Any], keys: Iterable[str], most: int) -> list[str]:
    return sorted(keys, key=figures.__getitem__)[-most:]


def added_up(members: Iterable[Mapping[str, Busy]]) -> dict[str, Busy]:
    """The calls of functions on several members together."""
    total: dict[str, Busy] = {}
    for key, more in (row for each in members for row in each.items()):
        calls, seconds = total.get(key, _NO_CALLS)
        rate = (calls / seconds if seconds else 0.0) + more.calls / more.seconds
        total[key] = Busy(calls + more.calls, (calls + more.calls) / rate)
    return total


class Spreads:
    """Over how many members the functions are spread that have several calls open in the pool.

    At once over more, and after a while over fewer: a function is warm there then.

    Args:
        for_each: so many members for each open call; 0: none is spread.
    """

    def __init__(self, for_each: float = SPREAD) -> None:
        self._for_each = for_each
        self._open: dict[str, float] = {}
        self._told: dict[str, int] = {}

    def update(self, busy: Mapping[str, Busy]) -> Mapping[str, int]:
        """Those that are spread now; to be called every `SPREAD_EVERY_S`.

        Args:
            busy: the calls of each function in the pool since the last time.
        """
        for key in self._open.keys() | busy.keys():
            calls, seconds = busy.get(key, _NO_CALLS)
            # of calls one after the other, as many seconds more may end within the time
            now, before = calls - seconds / SPREAD_EVERY_S, self._open.get(key, 0.0)
            self._open[key] = now if now > before else before + _FORGOTTEN * (now - before)
        hot = [key for key, calls in self._open.items() if calls > _ALONE]
        self._open = {key: self._open[key] for key in _largest(self._open, hot, _MOST_SPREAD)}
        wanted = {key: ceil(self._for_each * calls) for key, calls in self._open.items()}
        self._told = {
            key: _stepped(self._told.get(key, 0), count)
            for key, count in wanted.items()
            if count > 1
        }
        return self._told


def _stepped(before: int, now: int) -> int:
    return before if (1.0 - _STEP) * before <= now <= before else now


def _total(order: Sequence[str], devices: Mapping[str, int]) -> int:
    return sum(devices.get(name, 1) or 1 for name in order)
