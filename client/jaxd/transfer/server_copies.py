"""Copies of client data that the server keeps, so that the data is sent once.

A copy is a value of the session whose id the client chooses. A call brings it; once the reply has
confirmed it, later calls refer to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from jaxd.transfer.release_queue import ReleaseQueue
from jaxd_protocol.messages.data_locations import first_value_id, new_call_number

_LIMIT_BYTES: Final = 1 << 30


class ServerCopy:
    """A copy on the server.

    Attributes:
        id: of the value.
        nbytes: its size.
        users: open calls that bring it or refer to it.
        is_on_server: whether calls can refer to it.
        is_refused: whether the server had no room for it.
        is_shared: whether several arrays may refer to it, so that it outlives each of them.
    """

    __slots__ = ("id", "is_on_server", "is_refused", "is_shared", "nbytes", "users")

    def __init__(self, nbytes: int) -> None:
        self.id = first_value_id(new_call_number())
        self.nbytes = nbytes
        self.users = 1
        self.is_on_server = False
        self.is_refused = False
        self.is_shared = False


class ServerCopies:
    """The copies of one session, bounded: the least recently used is dropped first. Thread-safe.

    Args:
        release_queue: the ids of copies that the server can release.
        limit_bytes: of all copies together.
    """

    def __init__(self, release_queue: ReleaseQueue, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._drops = release_queue
        self._limit_bytes = limit_bytes
        self._copies: dict[int, ServerCopy] = {}  # by id, the least recently used first
        self._nbytes = 0
        self._forgotten: deque[ServerCopy] = deque()
        self._lock = threading.Lock()  # guards all but _forgotten

    def reserve(self, nbytes: int) -> ServerCopy | None:
        """A copy that a call brings; None when there is no room. It must be completed."""
        with self._lock:
            self._remove_forgotten()
            if not self._make_room(nbytes):
                return None
            copy = ServerCopy(nbytes)
            self._copies[copy.id] = copy
            self._nbytes += nbytes
        self._drops.start()
        return copy

    def acquire(self, copy: ServerCopy) -> bool:
        """Whether a call can refer to a copy, which must then be completed."""
        with self._lock:
            self._remove_forgotten()
            if copy.is_on_server:
                copy.users += 1
                self._copies[copy.id] = self._copies.pop(copy.id)
            return copy.is_on_server

    def complete(
        self, used: Iterable[ServerCopy], *, ready: bool, refused: Collection[int] = ()
    ) -> None:
        """Completes the copies of a call that is over.

        Args:
            used: the copies that it brought or referred to.
            ready: whether it has a result; else it is unknown whether the server has its copies.
            refused: ids of copies that the server has refused.
        """
        with self._lock:
            for copy in used:
                copy.users -= 1
                copy.is_refused = copy.id in refused
                if copy.is_refused or not (ready or copy.is_on_server):
                    self._remove(copy)
                else:
                    copy.is_on_server = copy.id in self._copies

    def release_unconfirmed(self, used: Iterable[ServerCopy]) -> None:
        """Has the server release what a call brought after it was completed without a result."""
        for copy in used:
            if not copy.is_on_server:
                self._drops.add(range(copy.id, copy.id + 1))

    def forget(self, copy: ServerCopy) -> None:
        """Releases the copy of an array that was collected, in any thread: takes no lock.

        No open call may use the copy.
        """
        if copy.is_shared:
            return
        self._forgotten.append(copy)
        self._drops.add(range(copy.id, copy.id + 1))

    def _remove_forgotten(self) -> None:
        with suppress(IndexError):
            while True:
                self._unlink(self._forgotten.popleft())

    def _make_room(self, nbytes: int) -> bool:
        idle = [copy for copy in self._copies.values() if not copy.users]
        for copy in idle:
            if self._nbytes + nbytes <= self._limit_bytes:
                break
            self._remove(copy)
        return self._nbytes + nbytes <= self._limit_bytes

    def _remove(self, copy: ServerCopy) -> None:
        self._unlink(copy)
        self._drops.add(range(copy.id, copy.id + 1))

    def _unlink(self, copy: ServerCopy) -> None:
        copy.is_on_server = False
        if self._copies.pop(copy.id, None) is not None:
            self._nbytes -= copy.nbytes
