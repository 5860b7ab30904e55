"""Back-pressure: how many calls of a connection, and how many bytes of all, are held at once.

When a budget is used up, the connection's reader stops reading and the socket pushes back. It
never stops while nothing of its own connection runs: then one more message is always let in, so
that any number of large calls in flight makes progress, and an answer that a parked call waits
for can always arrive.
"""

from __future__ import annotations

import threading

__all__ = ["Budget", "Share"]


class Budget:
    """The calls of all connections and the bytes of their messages. Thread-safe.

    Args:
        limit: bytes, over all connections.

    Attributes:
        used: bytes that are held in memory.
        calls: calls that were read and whose reply has not been sent.
        idle: set whenever there is none of those.
        changed: guards all of these, and the counts of every share.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.calls = 0
        self.idle = threading.Event()
        self.idle.set()
        self.changed = threading.Condition()


class Share:
    """One connection's part of the budget.

    Args:
        budget: the common one.
        slots: calls of this connection that may run at once.
    """

    def __init__(self, budget: Budget, slots: int) -> None:
        self._budget = budget
        self._slots = slots
        self._calls = 0
        self._parked = 0
        self._arriving = 0
        self._closed = False

    def admit(self, nbytes: int) -> None:
        """Called by the reader before it takes memory for a message; waits for room."""
        budget = self._budget
        with budget.changed:
            budget.changed.wait_for(lambda: self._idle() or budget.used + nbytes <= budget.limit)
            if not self._closed:
                budget.used += nbytes
                self._arriving += nbytes

    def begin(self) -> int:
        """A call was read; waits for a slot. Returns the bytes that `end` gives back."""
        with self._budget.changed:
            self._budget.changed.wait_for(lambda: self._idle() or self._active() < self._slots)
            self._calls += 1
            self._budget.calls += 1
            self._budget.idle.clear()
            nbytes, self._arriving = self._arriving, 0
            return nbytes

    def end(self, nbytes: int) -> None:
        """The call's reply was sent, or cannot be; gives back its slot, and so many bytes."""
        with self._budget.changed:
            self._calls -= 1
            self._budget.calls -= 1
            if not self._budget.calls:
                self._budget.idle.set()
            self._budget.used -= nbytes
            self._budget.changed.notify_all()

    def free(self, nbytes: int) -> None:
        """A thread let go of the data of a call that was answered before."""
        with self._budget.changed:
            self._budget.used -= nbytes
            self._budget.changed.notify_all()

    def settle(self) -> None:
        """A message that is no call was handled: gives back what it took."""
        if self._arriving:
            with self._budget.changed:
                self._budget.used -= self._arriving
                self._arriving = 0
                self._budget.changed.notify_all()

    def park(self) -> None:
        """A running call waits for its client: it does not count against reading on."""
        with self._budget.changed:
            self._parked += 1
            self._budget.changed.notify_all()

    def unpark(self) -> None:
        """The client answered."""
        with self._budget.changed:
            self._parked -= 1

    def close(self) -> None:
        """The connection ended: its reader must not wait any more."""
        with self._budget.changed:
            self._closed = True
            self._budget.used -= self._arriving
            self._arriving = 0
            self._budget.changed.notify_all()

    def _active(self) -> int:
        return self._calls - self._parked

    def _idle(self) -> bool:
        return self._closed or self._active() == 0
