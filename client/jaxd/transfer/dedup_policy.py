"""Decides whether data is hashed before it is sent, from measured throughput and hit rates."""

from __future__ import annotations

from collections import deque
from typing import Final

FAST: Final = 4e8
"""Bytes a second: over a faster link, hashing takes as long as sending."""

TRIED: Final = 8
"""After so many arrays it is clear enough whether the server has such arrays."""

LEFT_ALONE: Final = 256
"""So many arrays are sent unseen when it had none; then it is tried again."""

_SHARE: Final = 0.2
_SPEEDS: Final = 4
_REMEMBERED: Final = 64
_TELLING_BYTES: Final = 1 << 20


class Worth:
    """Measures throughput and hits. Races between threads only cost a little accuracy.

    Args:
        is_near: whether the link is taken for a fast one until a few calls have shown what it is.
    """

    def __init__(self, is_near: bool = False) -> None:
        self._speeds = deque([FAST if is_near else 0.0], maxlen=_SPEEDS)
        self._asked = 0
        self._hits = 0
        self._left_alone = 0

    @property
    def speed(self) -> float:
        """Bytes a second that the link can take at least, as far as is known."""
        return max(self._speeds)

    def trying(self, count: int) -> bool:
        """Whether to look whether the server has these arrays already."""
        if self.speed >= FAST:
            return False
        if self._left_alone > 0:
            self._left_alone -= count
            return False
        return True

    def found(self, hits: int, asked: int) -> None:
        """So many of the arrays that were looked for need not be sent."""
        self._hits += hits
        self._asked += asked
        if self._asked < TRIED:
            return
        if self._hits < self._asked * _SHARE:
            self._left_alone = LEFT_ALONE
            self._asked = self._hits = 0
        elif self._asked >= _REMEMBERED:
            self._asked //= 2
            self._hits //= 2

    def took(self, nbytes: int, seconds: float) -> None:
        """A call that sent so much was over after that time: the link is at least so fast.

        It may be faster where the call took long to run; but then hashing costs little beside it.
        """
        if nbytes >= _TELLING_BYTES:
            self._speeds.append(nbytes / max(seconds, 1e-9))
