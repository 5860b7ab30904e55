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

    Keeps nothing: what was made belongs in the caller's own table, and a failure reaches all who
    waited for it but is not remembered.
    """

    def __init__(self) -> None:
        self._flights: dict[K, Future[V]] = {}
        self._lock = threading.Lock()  # guards _flights

    def run(self, key: K, find: Callable[[], V | None], make: Callable[[], V]) -> V:
        """What `find` has, or what one caller's `make` returns.

        Args:
            key: what is being made.
            find: looks in the caller's table; called again under the lock, so that a flight
                that has just landed is not started once more.
            make: makes it and puts it into the table.

        Raises:
            BaseException: whatever `make` raised, in each caller that waited for it; but what one
                client's connection did to it concerns that client alone, and the next one tries.
        """
        with self._lock:
            found = find()
            if found is not None:
                return found
            flight = self._flights.get(key)
            mine = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if mine:
            self._fly(key, flight, make)
            return flight.result()
        try:
            return flight.result()
        except (ConnectionLost, ProtocolError):  # its maker's client failed, and ours may not
            return self.run(key, find, make)

    def _fly(self, key: K, flight: Future[V], make: Callable[[], V]) -> None:
        try:
            flight.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised again by flight.result()
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
