"""Spinning for the next message, where that is quicker than blocking and being woken.

In a train of small calls the peer's next message comes within some tens of microseconds. A thread
that sleeps meanwhile has to be woken, which costs about as much as the message itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

SPIN_S: Final = 200e-6
"""How long to spin. A peer in Python needs 30 to 50 µs between a reply and the next call, and
three times that on a virtual machine, whose idle processors are taken away."""

_SPIN_AFTER_MISS_S: Final = 600e-6
"""The same after a vain attempt: a peer that was woken finds its caches cold, and takes longer."""

_MAX_MISSES: Final = 3
"""Vain attempts in a row until it pauses. Whether one pays depends on whether the peer spins
as well, which has pauses of its own: the attempts of both ends have to meet now and then."""

_MIN_PAUSE: Final = 8
_MAX_PAUSE: Final = 32

_yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
_spin_lock = threading.Lock()  # one thread of a process at a time: two would only take turns


class AdaptiveWait:
    """Learns whether spinning pays. Used by one thread at a time.

    After some vain attempts it pauses for some messages, and for more the next time, so that a peer
    that takes its time, or a machine without a free processor, costs next to nothing.

    Args:
        ready: whether a message is there, without waiting.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready
        self._pays = True
        self._misses = 0
        self._rest = 0
        self._next_rest = _MIN_PAUSE

    def wait(self) -> None:
        """Returns when a message is there, or when it is time to sleep."""
        if self._rest:
            self._rest -= 1
        elif _spin_lock.acquire(blocking=False):
            try:
                self._learn(self._spin())
            finally:
                _spin_lock.release()

    def _spin(self) -> bool:
        end = time.perf_counter() + (SPIN_S if self._pays else _SPIN_AFTER_MISS_S)
        while not self._ready():
            if time.perf_counter() > end:
                return False
            _yield_processor()  # to whoever else could run here, the peer perhaps
        return True

    def _learn(self, paid: bool) -> None:
        self._pays = paid
        if paid:
            self._misses = 0
            self._next_rest = _MIN_PAUSE
            return
        self._misses += 1
        if self._misses >= _MAX_MISSES:
            self._misses = 0
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _MAX_PAUSE)
