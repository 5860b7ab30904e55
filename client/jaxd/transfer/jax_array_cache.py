"""Cache of jax arrays that were sent before: they are immutable, so they are not sent again.

An array that is sent a second time is kept by the server; from the third time on it is not sent.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from jaxd.transfer.server_copies import ServerCopies, ServerCopy
from jaxd_protocol.messages.data_locations import CACHED_AS_VALUE, VALUE, DataLocation

if TYPE_CHECKING:
    from collections.abc import Callable


MIN_CACHED_BYTES: Final = 1 << 16
"""Smaller arrays are sent as quickly as they are looked up."""


class _ArrayRef(weakref.ref[Any]):
    """A weak reference to an array, with its copy on the server, if any."""

    __slots__ = ("copy", "key")

    def __init__(self, array: Any, gone: Callable[[Any], object]) -> None:
        self.key = id(array)  # what `super` does with both, it has done in `__new__`
        self.copy: ServerCopy | None = None


class JaxArrayCache:
    """The jax arrays that one session has sent. Thread-safe.

    Args:
        copies: of the session.
    """

    def __init__(self, copies: ServerCopies) -> None:
        self._copies = copies
        self._refs: dict[int, _ArrayRef] = {}  # by id(): arrays of jax have no hash

    def __len__(self) -> int:
        return len(self._refs)

    def find_copy(self, leaf: int, array: Any) -> tuple[DataLocation, ServerCopy] | None:
        """What stands for an array that need not be sent; None when it has to be.

        The copy is to be settled when the call is over, and the array to be held until then.

        Args:
            leaf: its number in the call.
            array: jax's.
        """
        seen = self._find(array)
        copy = None if seen is None else seen.copy
        if copy is None or not self._copies.acquire(copy):
            return None
        return DataLocation(leaf, VALUE, copy.id), copy

    def offer_copy(self, leaf: int, array: Any) -> tuple[DataLocation, ServerCopy] | None:
        """How an array that is sent is kept; None when it is not. Otherwise as `known`."""
        nbytes: int = array.nbytes
        if nbytes < MIN_CACHED_BYTES:
            return None
        seen = self._find(array)
        if seen is None:
            self._add(array)
            return None
        if seen.copy is not None and (seen.copy.users or seen.copy.is_refused):
            return None
        seen.copy = copy = self._copies.reserve(nbytes)
        return None if copy is None else (DataLocation(leaf, CACHED_AS_VALUE, copy.id), copy)

    def link_copy(self, array: Any, copy: ServerCopy) -> None:
        """Notes that a copy that is there is one of this array."""
        (self._find(array) or self._add(array)).copy = copy

    def _find(self, array: Any) -> _ArrayRef | None:
        seen = self._refs.get(id(array))
        return seen if seen is not None and array is seen() else None

    def _add(self, array: Any) -> _ArrayRef:
        seen = self._refs[id(array)] = _ArrayRef(array, self._forget)
        return seen

    def _forget(self, seen: _ArrayRef) -> None:
        """An array was collected. Nothing is locked: this may be called anywhere."""
        if self._refs.get(seen.key) is seen:
            self._refs.pop(seen.key, None)
        if seen.copy is not None:
            self._copies.forget(seen.copy)
