"""How many seconds of tracing and compiling each principal may have of a server in an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from jaxd_protocol.errors import LimitExceeded

_HOUR_S: Final = 3600.0


class BuildQuota:
    """A token bucket of build seconds for each principal. Thread-safe.

    A build is not interrupted: the last one may take a principal below nothing, and it waits the
    longer.

    Args:
        seconds: in an hour, and at most at once; 0: no limit.
        clock: seconds that only grow.
    """

    def __init__(self, seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}  # seconds, and when that was
        self._lock = threading.Lock()  # guards the table

    def require(self, principal: str) -> None:
        """Returns when something may be built for a principal.

        Raises:
            LimitExceeded: when it may not; says when it may.
        """
        over = self._now(principal) - self._seconds if self._seconds else -1.0
        if over < 0:
            return
        wait_s = max(1.0, over * _HOUR_S / self._seconds)
        raise LimitExceeded(
            f"the server has traced and compiled {self._seconds:,.0f} s for you in the last hour "
            f"or so, and gives each user no more. Programs that are ready go on answering; new "
            f"ones can be made again in {wait_s:,.0f} s, or with a larger --principal-build-s."
        )

    def spend(self, principal: str, seconds: float) -> None:
        """So many seconds were spent for a principal."""
        if not self._seconds:
            return
        with self._lock:
            self._spent[principal] = self._left(principal) + seconds, self._clock()
            for name in [name for name in self._spent if not self._left(name)]:
                del self._spent[name]

    def _now(self, principal: str) -> float:
        with self._lock:
            return self._left(principal)

    def _left(self, principal: str) -> float:
        """What was spent and is not forgiven yet."""
        spent, at = self._spent.get(principal, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) * self._seconds / _HOUR_S)
