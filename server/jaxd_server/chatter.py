"""How much a worker whose code may be hostile says to its host without having been asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Chatter"]

_AT_ONCE: Final = 200
_A_SECOND: Final = 20.0
"""A worker has some ten things to say unasked, in all its life."""


class Chatter:
    """Counts what is said; what was not said for a while may be said later.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(_AT_ONCE)
        self._at = clock()

    def is_too_much(self) -> bool:
        """Counts one message more; whether nobody who means well says so much."""
        now = self._clock()
        self._left = min(_AT_ONCE, self._left + (now - self._at) * _A_SECOND) - 1
        self._at = now
        return self._left < 0
