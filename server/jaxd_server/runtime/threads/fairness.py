"""A queue and a semaphore that serve owners in turn, however many items each has.

So a single build waits for one build of a client that has queued a thousand of them, not for all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A round-robin queue: one owner after the other, the oldest item first. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()  # whose turn is next first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: Hashable, item: T) -> None:
        """Adds an item; an owner that had none waiting comes after the others."""
        self._waiting.setdefault(owner, deque()).append(item)
        self._count += 1

    def get(self) -> T | None:
        """Removes and returns the next item; None when the queue is empty."""
        if not self._waiting:
            return None
        owner, items = self._waiting.popitem(last=False)
        if len(items) > 1:
            self._waiting[owner] = items
        self._count -= 1
        return items.popleft()

    def remove(self, owner: Hashable, item: T) -> bool:
        """Removes an item, wherever it is; returns whether it was there."""
        items = self._waiting.get(owner, deque())
        index = next((index for index, one in enumerate(items) if one is item), None)
        if index is None:
            return False
        del items[index]
        self._count -= 1
        if not items:
            del self._waiting[owner]
        return True


CancelHook = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Makes a context in which a function is called, once, when the wait is cancelled."""


class _Waiter:
    """A waiting thread, which checks `has_turn` when `wake` is set."""

    __slots__ = ("has_turn", "wake")

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.has_turn = False


class FairSemaphore:
    """A semaphore, fair between owners. Thread-safe.

    Args:
        limit: how many may be inside at a time.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: FairQueue[_Waiter] = FairQueue()
        self._lock = threading.Lock()  # guards both

    def __len__(self) -> int:
        """The number of waiting threads."""
        return len(self._waiting)

    def enter(
        self,
        owner: Hashable,
        cancel_hook: CancelHook = lambda hook: nullcontext(),
        on_wait: Callable[[], None] = lambda: None,
    ) -> bool:
        """Waits for a turn, which `leave` ends; False when the wait was cancelled before.

        Args:
            owner: who waits.
            cancel_hook: registers a function that is called on cancellation.
            on_wait: called when there is no turn at once.
        """
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            place = _Waiter()
            self._waiting.put(owner, place)
        with cancel_hook(place.wake.set):
            on_wait()
            place.wake.wait()
        with self._lock:
            if not place.has_turn:
                self._waiting.remove(owner, place)
            return place.has_turn

    def leave(self) -> None:
        """Releases a slot to the next waiting thread."""
        with self._lock:
            place = self._waiting.get()
            if place is None:
                self._free += 1
                return
            place.has_turn = True
        place.wake.set()
