"""Staying awake for the next message, where that is quicker than falling asleep and being woken.

In a train of small calls the peer's next message comes within some tens of microseconds. A thread
that sleeps meanwhile has to be woken, which costs about as much as the message itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Patience"]

AWAKE_S: Final = 200e-6
"""How long to stay awake. A peer in Python needs 30 to 50 µs between a reply and the next call, and
three times that on a virtual machine, whose idle processors are taken away."""

_MISSES: Final = 3
_LONGEST_REST: Final = 256

_yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
_awake = threading.Lock()  # one thread of a process at a time: two would only take turns


class Patience:
    """Learns whether staying awake pays. Used by one thread at a time.

    After a few vain attempts it rests for more and more messages, so that a peer that takes its
    time, or a machine without a free processor, costs next to nothing.

    Args:
        ready: whether a message is there, without waiting.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready
        self._misses = 0
        self._rest = 0

    def wait(self) -> None:
        """Returns when a message is there, or when it is time to sleep."""
        if self._rest:
            self._rest -= 1
        elif _awake.acquire(blocking=False):
            try:
                self._learn(self._stay_awake())
            finally:
                _awake.release()

    def _stay_awake(self) -> bool:
        end = time.perf_counter() + AWAKE_S
        while not self._ready():
            if time.perf_counter() > end:
                return False
            _yield_processor()  # to whoever else could run here, the peer perhaps
        return True

    def _learn(self, paid: bool) -> None:
        self._misses = 0 if paid else self._misses + 1
        if self._misses >= _MISSES:
            self._rest = min(1 << self._misses, _LONGEST_REST)
