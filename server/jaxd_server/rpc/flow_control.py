"""Back-pressure: how many calls of a connection, and how many bytes of all, are held at once.

When a budget is used up, the connection's reader stops reading and the socket pushes back. It
never stops while nothing of its own connection runs: then one more message is always let in, so
that any number of large calls in flight makes progress, and an answer that a parked call waits
for can always arrive. But compressed data, which takes a client little to send and the server much
to hold, is never let in over the budget: there would be no end to it.

Calls that no thread works on yet wait in a backlog. It is limited, in total and for each principal:
a call on top of that is refused, with the time after which its client should repeat it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from jaxd_protocol.errors import Busy, LimitExceeded
from jaxd_server.runtime.limits import Quota

_MIN_UNSENT = 64 << 20

_MAX_WAIT_S: Final = 5.0
"""How long compressed data waits for room while nothing of its own connection runs."""


class CallBudget(Quota):
    """Bounds open calls, and the bytes of their messages, of all connections. Thread-safe.

    Args:
        limit: bytes, over all connections.
        share: of these, what one principal may have while others are connected.

    Attributes:
        connected: how many connections each principal has.
        max_unsent: bytes of results that may wait for one client before its calls do.
        calls: calls that were read and whose reply has not been sent.
        idle: set whenever there is none of those.
        changed: guards all of these, and the counts of every share.
    """

    def __init__(self, limit: int, share: float = 1.0) -> None:
        super().__init__(limit, share)
        self.connected: Counter[str] = Counter()
        self.max_unsent = max(_MIN_UNSENT, limit // 8)
        self.calls = 0
        self.idle = threading.Event()
        self.idle.set()
        self.changed = threading.Condition()

    def has_room(self, principal: str, nbytes: int) -> bool:
        """Whether there is room for so many bytes more of this principal's. `changed` is held."""
        if len(self.connected) < 2:
            return self.used + nbytes <= self.limit
        return nbytes <= self.left(principal)


class ConnectionShare:
    """One connection's share of the budget.

    Args:
        budget: the common one.
        slots: calls of this connection that may run at once.
        principal: whose it is.

    Attributes:
        unsent: bytes of results that its client has not taken yet.
    """

    def __init__(self, budget: CallBudget, slots: int, principal: str = "") -> None:
        self._budget = budget
        self._principal = principal
        self._slots = slots
        self._calls = 0
        self._parked = 0
        self._arriving = 0
        self._closed = False
        self.unsent = 0
        with budget.changed:
            budget.connected[principal] += 1

    @property
    def has_calls(self) -> bool:
        """Whether calls of the connection were read whose replies have not been sent."""
        return bool(self._calls)

    def admit(self, nbytes: int) -> None:
        """Called by the reader before it takes memory for a message; waits for room."""
        budget = self._budget
        with budget.changed:
            budget.changed.wait_for(
                lambda: self._idle() or budget.has_room(self._principal, nbytes)
            )
            if not self._closed:
                budget.add(self._principal, nbytes)
                self._arriving += nbytes

    def admit_strictly(self, nbytes: int) -> None:
        """As `admit`, of what compressed data becomes: the budget is never exceeded for it.

        Raises:
            LimitExceeded: when it is more than the whole budget.
            Busy: when others hold too much of it for too long.
        """
        budget = self._budget
        if nbytes > budget.limit:
            raise LimitExceeded(
                f"compressed arrays of {nbytes:,} bytes are over the server's budget of "
                f"{budget.limit:,}. Send them without compression (JAXD_COMPRESS=0), fewer at "
                "once, or start the server with a larger --budget-bytes."
            )
        with budget.changed:
            budget.changed.wait_for(lambda: self._idle() or self._fits(nbytes))
            if not self._parked:  # else the answer to a parked call would wait as well
                budget.changed.wait_for(lambda: self._fits(nbytes), _MAX_WAIT_S)
            if not self._fits(nbytes):
                raise Busy(
                    f"there is no room for compressed arrays of {nbytes:,} bytes now: others hold "
                    "the server's --budget-bytes. Call again."
                )
            if not self._closed:
                budget.add(self._principal, nbytes)
                self._arriving += nbytes

    def begin(self) -> int:
        """A call was read; waits for a slot, and for a client that does not take its results.

        Returns the bytes that `end_call` gives back.
        """
        with self._budget.changed:
            self._budget.changed.wait_for(self._may_begin)
            self._calls += 1
            self._budget.calls += 1
            self._budget.idle.clear()
            nbytes, self._arriving = self._arriving, 0
            return nbytes

    def end_call(self, nbytes: int) -> None:
        """The call's reply was sent, or cannot be; gives back its slot, and so many bytes."""
        with self._budget.changed:
            self._calls -= 1
            self._budget.calls -= 1
            if not self._budget.calls:
                self._budget.idle.set()
            if nbytes:  # a call that was answered has given them back
                self._give_back(nbytes)
            else:
                self._budget.changed.notify_all()

    def free(self, nbytes: int) -> None:
        """Gives back the bytes of a call that was answered before its thread was done."""
        with self._budget.changed:
            self._give_back(nbytes)

    def _give_back(self, nbytes: int) -> None:
        """The lock is held."""
        self._budget.add(self._principal, -nbytes)
        self._budget.changed.notify_all()

    def hold(self, nbytes: int) -> None:
        """A result of so many bytes waits to be sent; fewer, when that is negative."""
        if nbytes:
            with self._budget.changed:
                self.unsent += nbytes
                self._budget.changed.notify_all()

    def release_message(self) -> None:
        """A message that is no call was handled: gives back what it took."""
        if self._arriving:
            with self._budget.changed:
                self._give_back(self._arriving)
                self._arriving = 0

    def park(self) -> None:
        """A running call waits for its client: until `unpark` it does not block the reader."""
        with self._budget.changed:
            self._parked += 1
            self._budget.changed.notify_all()

    def unpark(self) -> None:
        """The client has answered."""
        with self._budget.changed:
            self._parked -= 1

    def close(self) -> None:
        """The connection ended: releases its reader, and what its last message holds."""
        with self._budget.changed:
            if not self._closed:
                self._budget.connected[self._principal] -= 1
                self._budget.connected += Counter()  # without those that have none
            self._closed = True
            self._give_back(self._arriving)
            self._arriving = 0

    def _idle(self) -> bool:
        return self._closed or self._calls == self._parked

    def _fits(self, nbytes: int) -> bool:
        """Whether so many bytes are within the budget. The lock is held."""
        if self._idle():  # there is nothing of its own that it could wait for
            return self._closed or self._budget.used + nbytes <= self._budget.limit
        return self._budget.has_room(self._principal, nbytes)

    def _may_begin(self) -> bool:
        active = self._calls - self._parked
        has_slot = active < self._slots and self.unsent <= self._budget.max_unsent
        return has_slot or not active or self._closed


_MIN_RETRY_S: Final = 0.05
_MAX_RETRY_S: Final = 10.0
_WEIGHT: Final = 0.1
"""Of the last call, in the mean time from one that is over to the next."""


class Backlog:
    """Calls that were taken on and are not over. Thread-safe.

    Args:
        limit: how many there may be.
        share: of these, what one principal may have.
        clock: seconds that only grow.
    """

    def __init__(
        self, limit: int, share: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = Quota(limit, share)
        self._clock = clock
        self._pace_s = 0.0
        self._left_at = clock()
        self._lock = threading.Lock()  # guards all of these

    def __len__(self) -> int:
        return self._calls.used

    def acquire(self, principal: str) -> None:
        """Takes a call on; `release` ends that.

        Raises:
            Busy: when there is no room for it now.
        """
        with self._lock:
            if self._calls.left(principal) < 1:
                raise self._busy(principal)
            if not self._calls.used:
                self._left_at = self._clock()
            self._calls.add(principal, 1)

    def release(self, principal: str) -> None:
        """A call is over."""
        with self._lock:
            now = self._clock()
            self._pace_s += _WEIGHT * (now - self._left_at - self._pace_s)
            self._left_at = now
            self._calls.add(principal, -1)

    def _busy(self, principal: str) -> Busy:
        """The error, with the time that half of what is before the call takes at present."""
        own, count = self._calls.used_by[principal], self._calls.used
        retry_after_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, max(1, count // 2) * self._pace_s))
        return Busy(
            f"the server is busy: it holds {own:,} calls of this user and {count - own:,} of "
            f"others. Repeat the call after {retry_after_s:.2f} s, have fewer in flight, or start "
            "the server with a larger --max-calls.",
            retry_after_s,
        )
