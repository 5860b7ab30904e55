"""Whether a thread runs something that a server's program has called back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

running: list[None] = []
"""One for each callback that runs now: each call looks here, which takes next to nothing."""

_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def inside() -> Iterator[None]:
    """Within it, this thread runs what a program has called back."""
    token = _inside.set(True)
    running.append(None)
    try:
        yield
    finally:
        running.pop()
        _inside.reset(token)


def is_inside() -> bool:
    """Whether this thread, or the one that copied its context from there, is inside of one."""
    return _inside.get()
