"""Ranges of remote arrays: consecutive arrays of one result as consecutive arguments of a call.

A loop passes hundreds of arrays in each step. A range stands for many of them in one entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxd_protocol.messages.data_locations import VALUE, DataLocation

if TYPE_CHECKING:
    from jaxd.interop.remote_array import RemoteArray, ResultBatch


_ORIGIN: Final = attrgetter("origin")
_NUMBER: Final = attrgetter("number")


class HandleRange(NamedTuple):
    """Consecutive arrays of one batch that are consecutive arguments of a call.

    Attributes:
        leaf: number of the first among the leaves of the call.
        origin: their batch.
        number: of the first in the batch.
        arrays: the arrays.
    """

    leaf: int
    origin: ResultBatch
    number: int
    arrays: Sequence[RemoteArray]

    @property
    def row(self) -> DataLocation:
        """Where their data lies."""
        return DataLocation(self.leaf, VALUE, self.origin.first + self.number, len(self.arrays) - 1)

    @property
    def numbers(self) -> range:
        """Their numbers in the batch."""
        return range(self.number, self.number + len(self.arrays))

    def numbers_at(self, leaves: Sequence[range]) -> Iterator[range]:
        """The numbers in the batch of those that are these leaves of the call."""
        shift = self.number - self.leaf
        for each in leaves:
            start = max(each.start + shift, self.number)
            stop = min(each.stop + shift, self.number + len(self.arrays))
            if start < stop:
                yield range(start, stop)

    def mark_donated(self, leaves: Sequence[range], taker: str) -> None:
        """Marks the arrays at these leaves as donated."""
        for numbers in self.numbers_at(leaves):
            self.origin.donate(numbers, taker)

    def unmark_donated(self, leaves: Sequence[range], taker: str) -> None:
        """Undoes one `mark_donated`."""
        for numbers in self.numbers_at(leaves):
            self.origin.take_back(numbers, taker, self.arrays)

    def mark_released(self, leaves: Sequence[range]) -> None:
        """Marks the arrays at these leaves as released by the server."""
        for numbers in self.numbers_at(leaves):
            self.origin.forget(numbers)

    def release(self, leaves: Sequence[range]) -> None:
        """Has the server release the arrays at these leaves, if it has not."""
        for numbers in self.numbers_at(leaves):
            self.origin.release(numbers)


class HandleRanges:
    """Collects the ranges of one call while its arguments are encoded.

    Attributes:
        ranges: the ranges so far.
    """

    __slots__ = ("_last_arrays", "_last_position", "_next_leaf", "ranges")

    def __init__(self) -> None:
        self.ranges: list[HandleRange] = []
        self._last_position: tuple[ResultBatch | None, int] = (None, 0)  # of the last one
        self._last_arrays: list[RemoteArray] = []  # its arrays
        self._next_leaf = -1  # the leaf behind it

    def add(self, leaf: int, arrays: Sequence[RemoteArray]) -> None:
        """Adds arrays that are consecutive in their batch, from that leaf of the call on."""
        origin, number = arrays[0].origin, arrays[0].number
        place = (origin, number - leaf)
        if place != self._last_position or leaf != self._next_leaf:
            self._last_position, self._last_arrays = place, []
            self.ranges.append(HandleRange(leaf, origin, number, self._last_arrays))
        self._last_arrays += arrays
        self._next_leaf = leaf + len(arrays)


def are_consecutive(arrays: Sequence[RemoteArray]) -> bool:
    """Whether arrays, at least one, are consecutive in one batch."""
    first = arrays[0].number
    if arrays[0].origin.begins_with(first, arrays):
        return True
    return len(set(map(_ORIGIN, arrays))) == 1 and list(map(_NUMBER, arrays)) == [
        *range(first, first + len(arrays))
    ]
