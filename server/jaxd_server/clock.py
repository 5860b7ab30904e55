"""Does things when their time has come: one thread for all deadlines of a process."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from jaxd_server.logs import log_event

__all__ = ["Alarm", "Clock"]


class Alarm:
    """Something that is to be done at a time; `off` calls it off."""

    __slots__ = ("_do", "at")

    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at = at
        self._do: Callable[[], None] | None = do

    def off(self) -> None:
        """It is not done any more, unless it is being done."""
        self._do = None  # and lets go of what it would be done to

    @property
    def is_off(self) -> bool:
        """Whether nothing will be done."""
        return self._do is None

    def ring(self) -> None:
        """Does it, unless it was called off."""
        do, self._do = self._do, None
        if do is not None:
            do()


class Clock:
    """Does what it is told at the time that it is told. Thread-safe; its thread starts when needed.

    What is done is to be quick, because everything else waits meanwhile.
    """

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()  # alarms of the same time ring in order
        self._changed = threading.Condition()  # guards these and the start of the thread
        self._runs = False

    def at(self, when: float, do: Callable[[], None]) -> Alarm:
        """Has something done at a time of `time.monotonic()`."""
        alarm = Alarm(when, do)
        with self._changed:
            heapq.heappush(self._alarms, (when, next(self._numbers), alarm))
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="jaxd-clock", daemon=True).start()
            elif self._alarms[0][2] is alarm:
                self._changed.notify()
        return alarm

    def after(self, seconds: float, do: Callable[[], None]) -> Alarm:
        """Has something done in so many seconds."""
        return self.at(time.monotonic() + seconds, do)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_time():
                    if not self._alarms:
                        self._runs = False
                        return
                    self._changed.wait(max(0.0, self._alarms[0][0] - time.monotonic()))
                alarm = heapq.heappop(self._alarms)[2]
            try:
                alarm.ring()
            except Exception:  # noqa: BLE001  the others have to ring all the same
                log_event("alarm_failed", level=logging.ERROR)
            del alarm

    def _is_time(self) -> bool:
        """Whether one is due; what was called off before that is forgotten. The lock is held."""
        while self._alarms and self._alarms[0][2].is_off:
            heapq.heappop(self._alarms)
        return bool(self._alarms) and self._alarms[0][0] <= time.monotonic()
