"""The calls of one session on its values, in the order in which they arrived.

The next one is dispatched while the device still works on the last, as in a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jaxd_server.in_order import InOrder
from jaxd_server.replies import Finish, Reply

__all__ = ["AHEAD", "Lane"]

AHEAD: Final = 4
"""Calls of one session that are dispatched and not done."""

_LINGER_S: Final = 0.25

Start = Callable[[], Finish]
Send = Callable[[Reply], None]


class Lane:
    """Starts calls in order, and has each reply sent when its call is done. Thread-safe."""

    def __init__(self) -> None:
        self._starts = InOrder("jaxd-lane", _LINGER_S)
        self._finishes = InOrder("jaxd-deliver", _LINGER_S)
        self._room = threading.Semaphore(AHEAD)

    @property
    def is_idle(self) -> bool:
        """Whether no call is being started or waits for that."""
        return self._starts.is_idle

    def put(self, start: Start, send: Send) -> None:
        """Has a call started when its turn comes."""

        def begin() -> None:
            self._room.acquire()
            finish = start()
            self._finishes.put(lambda: self._finish(finish, send))

        self._starts.put(begin)

    def _finish(self, finish: Finish, send: Send) -> None:
        try:
            reply = finish()
        finally:
            self._room.release()
        send(reply)

    def try_now(self, start: Start, send: Send) -> bool:
        """Runs a call in this thread if no other is being started or waits; whether it did."""
        return self._starts.try_now(lambda: send(start()()))

    def then(self, job: Callable[[], None]) -> None:
        """Has `job` done when all calls that came before it were started; at once if they were."""
        if not self._starts.try_now(job):
            self._starts.put(job)
