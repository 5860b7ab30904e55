"""Tracks whether a thread is running a callback of a server's program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

running: list[None] = []
"""One for each callback that runs now: each call looks here, which takes next to nothing."""

_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def inside() -> Iterator[None]:
    """A context in which this thread runs a callback."""
    token = _inside.set(True)
    running.append(None)
    try:
        yield
    finally:
        running.pop()
        _inside.reset(token)


def is_inside() -> bool:
    """Whether this thread, or the one whose context it copied, is running a callback."""
    return _inside.get()
