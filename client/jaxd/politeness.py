"""A server that is busy says when to come again, and clients do, each at a moment of its own."""

from __future__ import annotations

import random
import time
from typing import Any, Final

from jaxd_protocol.calls import FAILED, is_failure
from jaxd_protocol.errors import Busy

__all__ = ["Politeness"]

_LONGEST_S: Final = 60.0
"""For so long a call that has no `timeout_s` is repeated before its caller hears of it."""

_AT_MOST: Final = 8.0
_JITTER: Final = (0.5, 1.5)


class Politeness:
    """How often, and when, one call comes again.

    Args:
        deadline: `time.monotonic()` after which its caller does not wait.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline = time.monotonic() + _LONGEST_S if deadline is None else deadline
        self._patience = 1.0

    def pause_s(self, value: Any) -> float | None:
        """Seconds to wait before the call is made again.

        None when it is not to be: its reply says something else, or that would be too late.

        Args:
            value: what the server replied.
        """
        if value[0] != FAILED or not is_failure(value[1], Busy):
            return None
        return self.pause_after_s(float(value[1][4]))

    def pause_after_s(self, retry_after_s: float) -> float | None:
        """As `pause_s`, of what a server has said that takes no client now."""
        pause_s = retry_after_s * self._patience * random.uniform(*_JITTER)  # noqa: S311  no secret
        self._patience = min(_AT_MOST, 2 * self._patience)  # everybody may have been told the same
        return pause_s if time.monotonic() + pause_s < self._deadline else None
