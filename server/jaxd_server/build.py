"""Something that is being made for calls: who waits for it, and who works on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jaxd_protocol.errors import DeadlineExceeded
from jaxd_server.fair_queue import Turnstile
from jaxd_server.interest import Interest
from jaxd_server.interrupting import Interrupted, Interruptible

__all__ = ["Build", "being_made", "check_wanted", "in_turn", "present_build"]


class Build:
    """Something that is being made. Thread-safe.

    Args:
        owner: whom its turn is counted for.

    Attributes:
        name: what people call it, once it has begun.
        owner: the same.
        future: what becomes of it.
        waiting: the interests in it, each with what wakes its thread.
        begun: `time.monotonic()` when it had its turn; None before that.
        error: why nobody may wait for it any more; None as long as one may.
        is_left: whether nobody waits for it.
        interruptible: its trace.
        end_by_force: ends what works on it where that harms nobody else; None: nothing does.
    """

    def __init__(self, owner: object = None) -> None:
        self.name = ""
        self.owner = owner
        self.future: Future[Any] = Future()
        self.waiting: list[tuple[Interest, threading.Event]] = []
        self.begun: float | None = None
        self.error: DeadlineExceeded | None = None
        self.is_left = False
        self.interruptible = Interruptible()
        self.end_by_force: Callable[[], None] | None = None
        self._hooks: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # guards _hooks

    def begin(self, name: str) -> None:
        """It has its turn.

        Raises:
            Interrupted: when nobody waits for it any more.
        """
        self.check()
        self.name = name
        self.begun = time.monotonic()
        for interest, _ in list(self.waiting):
            interest.enter("building")

    def check(self) -> None:
        """Returns when somebody waits for it.

        Raises:
            Interrupted: when nobody does.
        """
        if self.is_left:
            raise Interrupted

    def tell(self) -> None:
        """Tells who works on it that nobody waits any more."""
        with self._lock:
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    @contextmanager
    def telling(self, hook: Callable[[], None]) -> Iterator[None]:
        """Within it, `hook` is called when nobody waits any more; at once when that is so."""
        with self._lock:
            self._hooks.append(hook)
        if self.is_left:  # since before
            self.tell()
        try:
            yield
        finally:
            with self._lock:
                if hook in self._hooks:
                    self._hooks.remove(hook)


_present: ContextVar[Build | None] = ContextVar("present build", default=None)


@contextmanager
def being_made(build: Build) -> Iterator[None]:
    """Within it, this thread makes that."""
    token = _present.set(build)
    try:
        yield
    finally:
        _present.reset(token)


def present_build() -> Build | None:
    """What this thread is making; None when it makes nothing that can be given up."""
    return _present.get()


@contextmanager
def in_turn(room: Turnstile, name: str) -> Iterator[None]:
    """Within it, it is the turn of what this thread makes.

    Args:
        room: lets a few build at a time.
        name: what people call it.

    Raises:
        Interrupted: when nobody waits for it any more.
    """
    build = _present.get()
    if build is None:
        with room:
            yield
        return
    if not room.enter(build.owner, build.telling):
        raise Interrupted
    try:
        build.begin(name)
        yield
    finally:
        room.leave()


def check_wanted() -> None:
    """Returns when somebody waits for what this thread makes.

    Raises:
        Interrupted: when nobody does.
    """
    build = _present.get()
    if build is not None:
        build.check()
