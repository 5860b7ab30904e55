"""Which keys are one function that says different devices."""

from __future__ import annotations

import threading
from typing import Final

from jaxd_server.function import Function

__all__ = ["Kin"]

_MOST: Final = 10_000


class Kin:
    """The keys that were called, of each function. Thread-safe."""

    def __init__(self) -> None:
        self._keys: dict[bytes, set[bytes]] = {}
        self._lock = threading.Lock()  # guards _keys

    def of(self, function: Function) -> tuple[bytes, ...]:
        """Those of the same function, this one among them."""
        with self._lock:
            if len(self._keys) >= _MOST:
                self._keys.clear()
            keys = self._keys.setdefault(function.plain_key, set())
            keys.add(function.key)
            return tuple(keys)
