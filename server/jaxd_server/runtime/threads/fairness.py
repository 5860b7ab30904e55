"""A queue that takes items of each owner in turn, however many each has.

So one client with a thousand builds makes another one's single build wait for one of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Generic, TypeVar

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

    def get(self) -> T | None:
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


CancelHook = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Makes a block within which what it is given is called once waiting has become pointless."""


class _Waiter:
    """A waiting thread, which checks again when `wake` is set."""

    __slots__ = ("has_turn", "wake")

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.has_turn = False


class FairSemaphore:
    """A semaphore, fair between owners. Thread-safe; as a context manager it has no owner.

    Args:
        limit: how many may be inside at a time.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: FairQueue[_Waiter] = FairQueue()
        self._lock = threading.Lock()  # guards both

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __enter__(self) -> None:
        self.enter(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def enter(self, owner: Hashable, telling: CancelHook = lambda hook: nullcontext()) -> bool:
        """Waits for a turn; whether it came before that was pointless. `leave` ends it.

        Args:
            owner: for whom.
            telling: registers a function that is called when waiting is pointless.
        """
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            place = _Waiter()
            self._waiting.put(owner, place)
        with telling(place.wake.set):
            place.wake.wait()
        with self._lock:
            if not place.has_turn:
                self._waiting.remove(owner, place)
            return place.has_turn

    def leave(self) -> None:
        """Releases a slot to the next one that waits."""
        with self._lock:
            place = self._waiting.get()
            if place is None:
                self._free += 1
                return
            place.has_turn = True
        place.wake.set()
