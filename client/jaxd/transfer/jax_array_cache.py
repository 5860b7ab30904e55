"""Cache of jax arrays that were sent before: they are immutable, so they are not sent again.

An array that is sent a second time is kept by the server; from the third time on it is not sent.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from jaxd.transfer.server_copies import Copies, Copy
from jaxd_protocol.messages.data_locations import KEPT, VALUE, Row

if TYPE_CHECKING:
    from collections.abc import Callable


SMALLEST_BYTES: Final = 1 << 16
"""Smaller arrays are sent as quickly as they are looked up."""


class _Seen(weakref.ref[Any]):
    """A weak reference to an array, with its copy on the server, if any."""

    __slots__ = ("copy", "key")

    def __init__(self, array: Any, gone: Callable[[Any], object]) -> None:
        self.key = id(array)  # what `super` does with both, it has done in `__new__`
        self.copy: Copy | None = None


class SeenArrays:
    """The jax arrays that one session has sent. Thread-safe.

    Args:
        copies: of the session.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._seen: dict[int, _Seen] = {}  # by id(): arrays of jax have no hash

    def __len__(self) -> int:
        return len(self._seen)

    def known(self, leaf: int, array: Any) -> tuple[Row, Copy] | None:
        """What stands for an array that need not be sent; None when it has to be.

        The copy is to be settled when the call is over, and the array to be held until then.

        Args:
            leaf: its number in the call.
            array: jax's.
        """
        seen = self._find(array)
        copy = None if seen is None else seen.copy
        if copy is None or not self._copies.use(copy):
            return None
        return Row(leaf, VALUE, copy.id), copy

    def offer(self, leaf: int, array: Any) -> tuple[Row, Copy] | None:
        """How an array that is sent is kept; None when it is not. Otherwise as `known`."""
        nbytes: int = array.nbytes
        if nbytes < SMALLEST_BYTES:
            return None
        seen = self._find(array)
        if seen is None:
            self._remember(array)
            return None
        if seen.copy is not None and (seen.copy.users or seen.copy.is_refused):
            return None
        seen.copy = copy = self._copies.begin(nbytes)
        return None if copy is None else (Row(leaf, KEPT, copy.id), copy)

    def link(self, array: Any, copy: Copy) -> None:
        """Notes that a copy that is there is one of this array."""
        (self._find(array) or self._remember(array)).copy = copy

    def _find(self, array: Any) -> _Seen | None:
        seen = self._seen.get(id(array))
        return seen if seen is not None and array is seen() else None

    def _remember(self, array: Any) -> _Seen:
        seen = self._seen[id(array)] = _Seen(array, self._forget)
        return seen

    def _forget(self, seen: _Seen) -> None:
        """An array was collected. Nothing is locked: this may be called anywhere."""
        if self._seen.get(seen.key) is seen:
            self._seen.pop(seen.key, None)
        if seen.copy is not None:
            self._copies.forget(seen.copy)
