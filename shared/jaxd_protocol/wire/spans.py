"""Several pieces of memory, sent or received as if they were one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

__all__ = ["Span"]

_MAX_VECTORS: Final = 512
"""Pieces per system call: well below IOV_MAX, which is 1024 on Linux."""


class Span:
    """Pieces of memory, and how many of their bytes have been moved.

    Attributes:
        counts: the bytes of each system call; appended to by that call itself, so that an
            interrupt cannot fall in between.
        descriptors: open files that go out with the first byte.
    """

    __slots__ = ("_ends", "_pieces", "counts", "descriptors", "total")

    def __init__(self, pieces: Sequence[memoryview], descriptors: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))
        self.total = self._ends[-1] if pieces else 0
        self.counts: list[int] = []
        self.descriptors = descriptors

    @property
    def moved(self) -> int:
        """Bytes that have been moved so far."""
        return sum(self.counts)

    def rest(self) -> list[memoryview]:
        """What is left, in as many pieces as one system call takes; empty when all is moved."""
        done = self.moved
        if done >= self.total:
            return []
        first = bisect_right(self._ends, done)
        pieces = list(self._pieces[first : first + _MAX_VECTORS])
        begun = done - (self._ends[first - 1] if first else 0)
        if begun:
            pieces[0] = pieces[0][begun:]
        return pieces

    def next(self, most: int) -> list[memoryview]:
        """As `rest`, but no more than so many bytes of it."""
        pieces = []
        for piece in self.rest():
            pieces.append(piece[:most])
            most -= len(piece)
            if most <= 0:
                break
        return pieces

    def fill(self, data: memoryview) -> int:
        """Copies the beginning of `data` into the pieces; returns how much found room."""
        taken = 0
        for piece in self._pieces:
            part = data[taken : taken + len(piece)]
            piece[: len(part)] = part
            taken += len(part)
        self.counts.append(taken)
        return taken
