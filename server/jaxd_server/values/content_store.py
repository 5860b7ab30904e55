"""A bounded store of arrays that clients may send again, found by their content.

Each principal has a store of its own: to know what is in somebody's array is not to have it. What
the store holds has been hashed here; what a client says of its data is not believed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxd_server.values.value import Value


ContentId = tuple[int, int]
"""What `jaxd_protocol.messages.data_locations.content_id` returns."""


class ContentStore:
    """A bounded store: the least recently used array goes first. Thread-safe.

    A reclaimer can have it emptied: all of it can be sent again.

    Args:
        limit: bytes of all arrays; 0: nothing is held.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[str, ContentId], Value] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()  # guards both

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._nbytes

    def put(self, principal: str, content: ContentId, value: Value) -> None:
        """Takes an array in if it has room at all; others go for it."""
        if value.nbytes > self._limit:
            return
        with self._lock:
            gone = [self._held.pop((principal, content), None)]
            self._held[principal, content] = value
            self._nbytes += value.nbytes - (gone[0].nbytes if gone[0] is not None else 0)
            while self._nbytes > self._limit:
                gone.append(self._take_oldest())
        del gone  # frees memory, and not under the lock

    def forget(self, principal: str) -> None:
        """Lets go of all that somebody has."""
        with self._lock:
            theirs = [key for key in self._held if key[0] == principal]
            gone = [self._held.pop(key) for key in theirs]
            self._nbytes -= sum(value.nbytes for value in gone)
        del gone  # frees memory, and not under the lock

    def find(self, principal: str, content: ContentId) -> Value | None:
        """The array with that content, of that principal's; None when it is not here."""
        with self._lock:
            value = self._held.get((principal, content))
            if value is not None:
                self._held.move_to_end((principal, content))
            return value

    def shrink(self) -> int:
        """Nothing: it is never above its limit."""
        return 0

    def reclaim(self, count: int) -> int:
        """Lets go of up to so many arrays; returns how many."""
        with self._lock:
            gone = [self._take_oldest() for _ in range(min(count, len(self._held)))]
        return len(gone)

    def _take_oldest(self) -> Value:
        _, value = self._held.popitem(last=False)
        self._nbytes -= value.nbytes
        return value
