"""Decides whether data is hashed before it is sent, from measured throughput and hit rates."""

from __future__ import annotations

from collections import deque
from typing import Final

FAST_LINK: Final = 4e8
"""Bytes a second: over a faster link, hashing takes as long as sending."""

PROBE_COUNT: Final = 8
"""After so many arrays it is clear enough whether the server has such arrays."""

SKIP_COUNT: Final = 256
"""So many arrays are sent unseen when it had none; then it is tried again."""

_MIN_HIT_SHARE: Final = 0.2
_KEPT_SPEEDS: Final = 4
_MAX_COUNTED: Final = 64
_MIN_MEASURED_BYTES: Final = 1 << 20


class DedupPolicy:
    """Measures throughput and hits. Races between threads only cost a little accuracy.

    Args:
        is_near: whether the link is taken for a fast one until a few calls have shown what it is.
    """

    def __init__(self, is_near: bool = False) -> None:
        self._speeds = deque([FAST_LINK if is_near else 0.0], maxlen=_KEPT_SPEEDS)
        self._probed = 0
        self._hits = 0
        self._to_skip = 0

    @property
    def speed(self) -> float:
        """Bytes a second that the link can take at least, as far as is known."""
        return max(self._speeds)

    def should_probe(self, count: int) -> bool:
        """Whether to look whether the server has these arrays already."""
        if self.speed >= FAST_LINK:
            return False
        if self._to_skip > 0:
            self._to_skip -= count
            return False
        return True

    def record_probe(self, hits: int, asked: int) -> None:
        """So many of the arrays that were looked for need not be sent."""
        self._hits += hits
        self._probed += asked
        if self._probed < PROBE_COUNT:
            return
        if self._hits < self._probed * _MIN_HIT_SHARE:
            self._to_skip = SKIP_COUNT
            self._probed = self._hits = 0
        elif self._probed >= _MAX_COUNTED:
            self._probed //= 2
            self._hits //= 2

    def record_transfer(self, nbytes: int, seconds: float) -> None:
        """A call that sent so much was over after that time: the link is at least so fast.

        It may be faster where the call took long to run; but then hashing costs little beside it.
        """
        if nbytes >= _MIN_MEASURED_BYTES:
            self._speeds.append(nbytes / max(seconds, 1e-9))
