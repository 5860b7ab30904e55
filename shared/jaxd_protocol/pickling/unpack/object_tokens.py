"""Objects that a server keeps for its clients, which know them only by a token.

A token is a capability: its holder can pass the object as an argument, and no more. It is random,
so it is known only to clients whose results held the object.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ArgumentError

_LIMIT: Final = 4096
_TOKEN_BYTES: Final = 16


class _Lookup(NamedTuple):
    """An object that is looked up each time its token is used."""

    name: Hashable
    find: Callable[[], Any]


class ObjectTokens:
    """The most recently kept or used objects, by token. Thread-safe.

    Args:
        limit: how many to keep.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._objects = BoundedDict[bytes, Any](limit)
        self._tokens: dict[Hashable, bytes] = {}  # by identity, or by the name of a lookup
        self._lock = threading.RLock()  # guards both; dropping an object may run its finalizer

    def keep(self, value: Any) -> bytes:
        """The token of an object; the same one as long as it is kept."""
        return self._keep(id(value), value)

    def promise(self, name: Hashable, find: Callable[[], Any]) -> bytes:
        """The token of an object that may not exist yet; the same one for the same name.

        Args:
            name: identifies the object; not a number.
            find: called each time the token is used. ImportError, AttributeError and LookupError
                mean that there is no such object.
        """
        return self._keep(name, _Lookup(name, find))

    def _keep(self, name: Hashable, value: Any) -> bytes:
        dropped = None
        with self._lock:
            token = self._tokens.get(name)
            if token is None:
                token = self._tokens[name] = os.urandom(_TOKEN_BYTES)
                dropped = self._objects.put(token, value)
            else:
                self._objects.use(token)
            if dropped is not None:
                del self._tokens[dropped.name if type(dropped) is _Lookup else id(dropped)]
        return token

    def find(self, token: bytes) -> Any:
        """The object of that token.

        Raises:
            ArgumentError: when it is not kept, or not any more.
        """
        with self._lock:
            found = self._objects.use(token)
        cause: Exception | None = None
        if type(found) is _Lookup:
            try:
                return found.find()
            except (AttributeError, ImportError, LookupError) as error:
                cause = error
        elif found is not None:
            return found
        raise ArgumentError(
            "an argument holds a RemoteObject that this server does not have, or not any more: a "
            f"server keeps the last {self._objects.limit} of them, and none when it starts again. "
            "Call the function that returned it once more, or make the object in your own process."
        ) from cause


_object_tokens: Final = ObjectTokens()

keep_object: Final = _object_tokens.keep
keep_lookup: Final = _object_tokens.promise
find_kept_object: Final = _object_tokens.find
"""What a `RemoteObject` is unpickled by, in the process that has kept the object."""
