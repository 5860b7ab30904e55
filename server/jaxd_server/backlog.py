"""How many calls a worker takes on before it says that it is busy: of all, and of one principal.

Beyond what its threads work on, calls wait. So that their number does not grow without bound, nor
one principal's fill the place, who comes on top of that is told when to come again. How many bytes
they bring is bounded elsewhere: see `budget`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from jaxd_protocol.errors import Busy

__all__ = ["Backlog"]

_SOONEST_S: Final = 0.05
_LATEST_S: Final = 10.0
_WEIGHT: Final = 0.1
"""Of the last call, in the mean time from one that is over to the next."""


class Backlog:
    """Calls that were taken on and are not over. Thread-safe.

    Args:
        limit: how many there may be.
        share: of these, what one principal may have.
        clock: seconds that only grow.
    """

    def __init__(
        self, limit: int, share: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._most = max(1, int(limit * share))
        self._clock = clock
        self._calls: Counter[str] = Counter()
        self._count = 0
        self._pace_s = 0.0
        self._left_at = clock()
        self._lock = threading.Lock()  # guards all of these

    def __len__(self) -> int:
        return self._count

    def enter(self, principal: str) -> None:
        """Takes a call on; `leave` ends that.

        Raises:
            Busy: when there is no room for it now.
        """
        with self._lock:
            own = self._calls[principal]
            if self._count >= self._limit or own >= self._most:
                raise self._busy(own)
            if not self._count:
                self._left_at = self._clock()
            self._calls[principal] += 1
            self._count += 1

    def leave(self, principal: str) -> None:
        """A call is over."""
        with self._lock:
            now = self._clock()
            self._pace_s += _WEIGHT * (now - self._left_at - self._pace_s)
            self._left_at = now
            self._count -= 1
            self._calls[principal] -= 1
            if not self._calls[principal]:
                del self._calls[principal]

    def _busy(self, own: int) -> Busy:
        """With the time that half of what is before it takes, at the pace of late."""
        ahead = max(1, self._count // 2)
        retry_after_s = min(_LATEST_S, max(_SOONEST_S, ahead * self._pace_s))
        return Busy(
            f"the server is busy: it holds {own:,} calls of this user and {self._count - own:,} of "
            f"others. Repeat the call after {retry_after_s:.2f} s, have fewer in flight, or start "
            "the server with a larger --max-calls.",
            retry_after_s,
        )
