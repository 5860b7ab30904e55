"""A connection's own thread, for the replies that nobody waits for."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

__all__ = ["Attendant", "Attended"]


class Attended(Protocol):
    """A connection that may have to be read although no caller waits."""

    alive: bool

    def attend_once(self) -> None:
        """Reads until no reply is left that nobody waits for."""


class Attendant:
    """Reads a connection when it is wanted; started at the first time. Does not keep it alive."""

    def __init__(self, connection: Attended) -> None:
        self._connection = weakref.ref(connection)
        self._wanted = threading.Event()
        self._started = False
        weakref.finalize(connection, self._wanted.set)  # the thread waits for nothing else

    def want(self) -> None:
        """Lets the thread look; to be called under the connection's lock."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="jaxd-reader", daemon=True).start()
        self._wanted.set()

    def dismiss(self) -> None:
        """The connection has ended: so does the thread."""
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            connection = self._connection()
            if connection is None or not connection.alive:
                return
            connection.attend_once()
            del connection
