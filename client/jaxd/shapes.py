"""Short names for long skeletons: a loop need not say in each step what its state looks like."""

from __future__ import annotations

import threading
from typing import Final

from jaxd_protocol.elsewhere import (
    MOST_NAMED_BYTES,
    NAMED,
    WORTH_A_NAME,
    known_skeleton,
    named_skeleton,
)

__all__ = ["Shapes"]

_MOST: Final = 256


class Shapes:
    """The names that the server of one session knows. Thread-safe.

    A name is never given to another skeleton: a call must not be taken for another.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: nobody else holds the lock."""
        self._known: dict[bytes, int] = {}
        self._given = 0
        self._lock = threading.Lock()  # guards _given

    def told(self, skeleton: bytes) -> bytes:
        """What to send in place of a skeleton."""
        number = self._known.get(skeleton)
        if number is not None:
            return known_skeleton(number)
        if not WORTH_A_NAME <= len(skeleton) <= MOST_NAMED_BYTES - 2:
            return skeleton
        with self._lock:
            if self._given >= _MOST:
                return skeleton
            number, self._given = self._given, self._given + 1
        return named_skeleton(number, skeleton)

    def heard(self, told: bytes) -> None:
        """The server has answered a call in which it was told this."""
        if told.startswith(NAMED):
            self._known[told[2:]] = told[1]
