"""Which member of a pool answers a call: rendezvous hashing of the key, with bounded load.

Each key has an order of all members, which follows from the key and the names alone. So a function
is warm on the first few members of its order, wherever its clients are; and when a member comes or
goes, only those keys move that have it in the first place. The bound keeps a function that is
called more often than one member can answer from waiting there: its calls go on to the next of its
order, and it gets warm on as many members as its load needs.

All of this is comparing the bytes of digests: equal on every machine, in every process and with
every version of Python. An order costs a digest for each member, so a caller keeps it for each key
and view of the pool; a choice costs a look at the first members of the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil
from typing import Final, Protocol

BOUND: Final = 1.25
"""So many times its share of all open calls a member may have before the next one is chosen."""

_BYTES: Final = 8
"""Of a number that a member draws; they are compared as they are, the first byte first."""
_ONE_EACH: Final[Mapping[str, int]] = {}


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
    total_load: int | None = None,
    devices: Mapping[str, int] | None = None,
    total_devices: int | None = None,
) -> str:
    """The member that the next call of a key goes to: the first whose load is below its limit.

    A limit is `bound` times the member's share of all open calls, the next one among them, rounded
    up. So never all members have reached theirs, unless `total_load` is less than there is; then it
    is the member with the least load for its devices.

    Args:
        order: what `ranked` returned, or those of it that take calls; not empty.
        loads: open calls of each member that has any.
        bound: 1 or more; the closer to 1, the more even the load, and the more members each
            function gets warm on.
        least: so many open calls for each device are within every limit, also where the pool has
            little to do.
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
    for name in order:
        if loads.get(name, 0) < ceil(share * (counts.get(name, 1) or 1)):
            return name
    return min(order, key=lambda name: loads.get(name, 0) / (counts.get(name, 1) or 1))


def _total(order: Sequence[str], devices: Mapping[str, int]) -> int:
    return sum(devices.get(name, 1) or 1 for name in order)
