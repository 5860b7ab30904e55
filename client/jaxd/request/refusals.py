"""Which calls a server has refused, so that their likes are not sent: they run in this process."""

from __future__ import annotations

from time import monotonic
from typing import Final

_WALK_AGAIN_S: Final = 1.0
"""A function that cannot be walked is walked again after this time: what it reaches may change."""


class Refused(Exception):
    """A call is like one that was refused, and is not sent. Its caller runs it in this process.

    Attributes:
        reason: why that one was refused.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WalkRefusal:
    """A function could not be walked, so that there is no snapshot of it.

    Args:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._until = monotonic() + _WALK_AGAIN_S

    def check(self) -> None:
        """Returns when the function may be walked again.

        Raises:
            Refused: when that was tried a moment ago.
        """
        if monotonic() < self._until:
            raise Refused(self._reason)
