"""Lets a few through at a time: in turn among those for whom they come, not by who came first.

So one client with a thousand builds makes another one's single build wait for one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from jaxd_server.fair_queue import FairQueue

__all__ = ["Telling", "Turnstile"]

Telling = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Makes a block within which what it is given is called once waiting has become pointless."""


class _Place:
    """Of one who waits; it looks again when `gate` is set."""

    __slots__ = ("gate", "has_turn")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.has_turn = False


class Turnstile:
    """Thread-safe. A context manager as well, for those who come for nobody in particular.

    Args:
        limit: how many may be inside at a time.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: FairQueue[_Place] = FairQueue()
        self._lock = threading.Lock()  # guards both

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __enter__(self) -> None:
        self.enter(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def enter(self, owner: Hashable, telling: Telling = lambda hook: nullcontext()) -> bool:
        """Waits for a turn; whether it came before that was pointless. `leave` ends it.

        Args:
            owner: for whom.
            telling: says when waiting is pointless.
        """
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            place = _Place()
            self._waiting.put(owner, place)
        with telling(place.gate.set):
            place.gate.wait()
        with self._lock:
            if not place.has_turn:
                self._waiting.remove(owner, place)
            return place.has_turn

    def leave(self) -> None:
        """One goes, and the next comes in."""
        with self._lock:
            place = self._waiting.take()
            if place is None:
                self._free += 1
                return
            place.has_turn = True
        place.gate.set()
