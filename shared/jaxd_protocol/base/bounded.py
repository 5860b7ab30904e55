"""A mapping of limited size."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A mapping that drops its least recently used entry when it has more than `limit`.

    To set an entry is to use it, and so is `use`; to read one by `get` or `[]` is not, and costs
    what it costs in any dict.

    Each lookup is atomic. Setting entries from several threads at once is safe without a lock as
    long as hash and equality of the keys are written in C (bytes, str, int, tuples of these,
    types): no entry is mixed up with another, and at the most one too many is dropped. To look one
    up and then set it (`setdefault`, `+=`) is no single step: two threads may each set their own.

    Args:
        limit: of entries.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V) -> V | None:
        """Sets an entry; returns the value that was dropped for it, None when none was.

        A caller with a lock can destroy that value after releasing it.
        """
        super().__setitem__(key, value)
        try:
            self.move_to_end(key)
            return self.popitem(last=False)[1] if len(self) > self.limit else None
        except KeyError:  # another thread was faster
            return None

    def use(self, key: K) -> V | None:
        """The value of an entry, which is then the most recently used; None when there is none."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self.get(key)
