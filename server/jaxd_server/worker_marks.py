"""What a worker has said of itself that is true from then on: how far it has come, why it ends."""

from __future__ import annotations

import asyncio

__all__ = ["Marks"]


class Marks:
    """Each is set once; saying it again adds nothing. Belongs to the thread of the event loop.

    Attributes:
        standing_by: it has imported what a worker needs.
        prepared: all is there but that it accepts clients.
        stale: it ends because what it stood by with has changed on disk.
        outdated: it drains because packages have changed on disk.
        resting: it drains because nobody has needed it.
        gave_way: it drains in favour of the next one.
    """

    def __init__(self) -> None:
        self.standing_by = asyncio.Event()
        self.prepared = asyncio.Event()
        self.stale = asyncio.Event()
        self.outdated = asyncio.Event()
        self.resting = asyncio.Event()
        self.gave_way = asyncio.Event()
        self._by_name = dict(vars(self))

    @property
    def draining(self) -> tuple[asyncio.Event, ...]:
        """Those of a worker that drains by itself, on purpose."""
        return self.outdated, self.resting, self.gave_way

    def is_one(self, name: str) -> bool:
        """Whether there is a mark of that name."""
        return name in self._by_name

    def set(self, name: str) -> bool:
        """Notes that it was said; whether that is new."""
        mark = self._by_name[name]
        if mark.is_set():
            return False
        mark.set()
        return True
