"""Timers: one thread for all of a process."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Final

from jaxd_protocol.base.process import start_thread

_FEW: Final = 64


class Timer:
    """A function that is called at a given time, unless it is cancelled before."""

    __slots__ = ("_do", "at")

    def __init__(self, at: float, do: Callable[[], object]) -> None:
        self.at = at
        self._do: Callable[[], object] | None = do

    def cancel(self) -> None:
        """The function is not called any more; a call that has begun goes on."""
        self._do = None  # and drops its reference to the function

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled, or its time has come."""
        return self._do is None

    def run(self) -> None:
        """Calls the function, unless it was cancelled."""
        do, self._do = self._do, None
        if do is not None:
            do()


class TimerThread:
    """Calls functions at given times. Thread-safe; its thread starts when needed.

    The functions have to be quick, because all other timers wait meanwhile.

    Args:
        name: of its thread.
        failed: called in an `except` block when a function has raised an exception.
    """

    def __init__(self, name: str, failed: Callable[[], object]) -> None:
        self._name = name
        self._failed = failed
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: the thread and the timers are the parent's."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()  # timers of the same time go in order
        self._most = _FEW  # so many, and those that were cancelled are removed
        self._changed = threading.Condition()  # guards these and the start of the thread
        self._runs = False

    def at(self, when: float, do: Callable[[], object]) -> Timer:
        """Schedules a function at a time of `time.monotonic()`.

        Raises:
            Busy: when the system has no thread for it.
        """
        timer = Timer(when, do)
        with self._changed:
            if len(self._timers) >= self._most:
                self._timers = [each for each in self._timers if not each[2].is_over]
                heapq.heapify(self._timers)
                self._most = max(_FEW, 2 * len(self._timers))
            heapq.heappush(self._timers, (when, next(self._numbers), timer))
            if not self._runs:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
                self._runs = True  # now: where no thread can be had, the next one is tried
            elif self._timers[0][2] is timer:
                self._changed.notify()
        return timer

    def after(self, seconds: float, do: Callable[[], object]) -> Timer:
        """Schedules a function in so many seconds."""
        return self.at(time.monotonic() + seconds, do)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_time():
                    if not self._timers:
                        self._runs = False
                        return
                    self._changed.wait(max(0.0, self._timers[0][0] - time.monotonic()))
                timer = heapq.heappop(self._timers)[2]
            try:
                timer.run()
            except Exception:  # noqa: BLE001  the other timers still have to run
                self._failed()
            del timer

    def _is_time(self) -> bool:
        """Whether one is due; what was cancelled before that is removed. The lock is held."""
        while self._timers and self._timers[0][2].is_over:
            heapq.heappop(self._timers)
        return bool(self._timers) and self._timers[0][0] <= time.monotonic()
