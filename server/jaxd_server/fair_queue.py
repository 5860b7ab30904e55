"""What waits, by the one for whom it waits: each has its turn, however much waits for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Gives what waits to one owner after the other, the oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()  # whose turn is next first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: Hashable, item: T) -> None:
        """Adds something; an owner that had nothing waiting comes after the others."""
        self._waiting.setdefault(owner, deque()).append(item)
        self._count += 1

    def take(self) -> T | None:
        """The next one; None when nothing waits."""
        if not self._waiting:
            return None
        owner, items = self._waiting.popitem(last=False)
        if len(items) > 1:
            self._waiting[owner] = items
        self._count -= 1
        return items.popleft()

    def remove(self, owner: Hashable, item: T) -> bool:
        """Takes something out, wherever it stands; whether it was there."""
        items = self._waiting.get(owner, deque())
        for index, one in enumerate(items):
            if one is item:
                del items[index]
                self._count -= 1
                if not items:
                    del self._waiting[owner]
                return True
        return False

    def of(self, owner: Hashable) -> int:
        """How many wait for this one."""
        return len(self._waiting.get(owner, ()))
