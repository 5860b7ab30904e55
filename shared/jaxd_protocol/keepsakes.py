"""Objects that a server keeps for its clients, which know them only by a token.

A token is a capability: whoever has it can have the object put into an argument, and no more.
It is random, so it is known only to clients whose results held the object.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any, Final

from jaxd_protocol.errors import ArgumentError

__all__ = ["Keepsakes", "keep", "recall"]

_LIMIT: Final = 4096
_TOKEN_BYTES: Final = 16


class Keepsakes:
    """The objects that were kept or recalled last. Safe from any thread.

    Args:
        limit: how many to keep.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._objects: OrderedDict[bytes, Any] = OrderedDict()
        self._tokens: dict[int, bytes] = {}
        self._lock = threading.RLock()  # guards both; dropping an object may run its finalizer

    def keep(self, value: Any) -> bytes:
        """The token of an object; the same one as long as it is kept."""
        dropped = None
        with self._lock:
            token = self._tokens.get(id(value))
            if token is None:
                token = self._tokens[id(value)] = os.urandom(_TOKEN_BYTES)
                self._objects[token] = value
            self._objects.move_to_end(token)
            if len(self._objects) > self._limit:
                _, dropped = self._objects.popitem(last=False)
                del self._tokens[id(dropped)]
        return token

    def recall(self, token: bytes) -> Any:
        """The object of that token.

        Raises:
            ArgumentError: when it is not kept, or not any more.
        """
        with self._lock:
            if token in self._objects:
                self._objects.move_to_end(token)
                return self._objects[token]
        raise ArgumentError(
            "an argument holds a RemoteObject that this server does not have, or not any more: a "
            f"server keeps the last {self._limit} of them, and none when it starts again. Call the "
            "function that returned it once more, or make the object in your own process."
        )


_keepsakes: Final = Keepsakes()


def keep(value: Any) -> bytes:
    """The token of an object in this process."""
    return _keepsakes.keep(value)


def recall(token: bytes) -> Any:
    """The object of that token in this process: how a `RemoteObject` arrives at its server.

    Raises:
        ArgumentError: when it is not kept, or not any more.
    """
    return _keepsakes.recall(token)
