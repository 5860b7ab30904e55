"""Joins concurrent requests: one caller makes the result, the others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from jaxd_protocol.errors import ConnectionLost, ProtocolError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Joins concurrent requests for the same thing: the first one makes it, the others wait.

    Keeps nothing: a result belongs in the caller's own table, and a failure reaches all callers
    that waited for it, but is not kept.
    """

    def __init__(self) -> None:
        self._flights: dict[K, Future[V]] = {}
        self._lock = threading.Lock()  # guards _flights

    def run(self, key: K, find: Callable[[], V | None], make: Callable[[], V]) -> V:
        """The result of `find`, or of one caller's `make`.

        Args:
            key: of the result.
            find: looks in the caller's table; called again under the lock, so that a result
                that was just made is not made once more.
            make: makes it and puts it into the table.

        Raises:
            BaseException: the exception of `make`, in each caller that waited for it. But a
                failure of one client's connection is raised for that client only, and the next
                caller tries.
        """
        with self._lock:
            found = find()
            if found is not None:
                return found
            mine = key not in self._flights
            flight = self._flights.setdefault(key, Future())
        if mine:
            self._fly(key, flight, make)
            return flight.result()
        try:
            return flight.result()
        except (ConnectionLost, ProtocolError):  # of the client that made it; ours may be there
            return self.run(key, find, make)

    def _fly(self, key: K, flight: Future[V], make: Callable[[], V]) -> None:
        try:
            flight.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised again by flight.result()
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
