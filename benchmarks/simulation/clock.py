"""Events in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any


class Clock:
    """The time of a simulation, and what is to happen later.

    Attributes:
        now: seconds since its beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Has `act(*arguments)` called so many seconds from now; what comes first is first."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), act, arguments))

    def follow(self, times: Iterator[tuple[Any, ...]], act: Callable[..., None]) -> None:
        """Has `act` called at each of these times, which rise, with what stands behind the time."""
        for at, *arguments in times:
            self.after(at - self.now, self._followed, times, act, arguments)
            return

    def _followed(
        self, times: Iterator[tuple[Any, ...]], act: Callable[..., None], arguments: list[Any]
    ) -> None:
        self.follow(times, act)
        act(*arguments)

    def every(self, seconds: float, act: Callable[[], None], first: float = 0.0) -> None:
        """Has `act` called again and again, for the first time after `first` seconds."""

        def again() -> None:
            self.after(seconds, again)
            act()

        self.after(first, again)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Lets things happen until `is_over` says so after one, or nothing is left to happen."""
        events = self._events
        while events:
            self.now, _, act, arguments = heapq.heappop(events)
            act(*arguments)
            if is_over():
                return
