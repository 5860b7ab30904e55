"""Where on the clients the objects of an arrived function are: by their numbers in its walk.

A function that was checked has, on both ends, the same objects under the same numbers. So an
object of it that turns up in a result can be named by its number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from jaxd_protocol.trees.references import mark_of

__all__ = ["Homes", "homes"]

_LIMIT: Final = 1000
_MOST_NAMED: Final = 32
_DATA: Final = frozenset({bool, bytes, complex, dict, float, int, list, set, str, tuple})


class Homes:
    """The objects of the functions that arrived last. Safe from any thread.

    Args:
        limit: of how many functions.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._arrived: OrderedDict[bytes, Sequence[Any]] = OrderedDict()
        self._places: dict[int, dict[bytes, int]] = {}
        self._lock = threading.RLock()  # guards both; dropping an object may run its finalizer

    def add(self, fingerprint: bytes, objects: Sequence[Any]) -> None:
        """Notes what a function reaches, in the order of its walk."""
        mark = mark_of(fingerprint)
        forgotten: list[Sequence[Any]] = []
        with self._lock:
            if mark in self._arrived:
                forgotten.append(self._forget(mark))
            self._arrived[mark] = objects
            for number, value in enumerate(objects):
                if type(value) not in _DATA:
                    self._places.setdefault(id(value), {}).setdefault(mark, number)
            if len(self._arrived) > self._limit:
                forgotten.append(self._forget(next(iter(self._arrived))))

    def _forget(self, mark: bytes) -> Sequence[Any]:
        objects = self._arrived.pop(mark)
        for value in objects:
            places = self._places.get(id(value), {})
            places.pop(mark, None)
            if not places:
                self._places.pop(id(value), None)
        return objects

    def of(self, value: Any) -> tuple[tuple[bytes, int], ...]:
        """Marks of functions that reach this very object, each with its number there.

        Those that arrived last come first.
        """
        with self._lock:
            places = self._places.get(id(value), {})
            return tuple(reversed(places.items()))[:_MOST_NAMED]

    def at(self, places: Iterable[tuple[bytes, int]]) -> Any:
        """The object that `of` named so, here or in another process.

        Raises:
            LookupError: when none of these functions is here, or not any more.
        """
        with self._lock:
            for mark, number in places:
                objects = self._arrived.get(mark, ())
                if 0 <= number < len(objects):
                    return objects[number]
        raise LookupError("no function is here that reaches it")


homes: Final = Homes()
"""Those of this process."""
