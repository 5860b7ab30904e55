"""Tracks whether a thread is running a callback of a server's program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

running_callbacks: list[None] = []
"""One for each callback that runs now: each call looks here, which takes next to nothing."""

_in_callback: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def callback_scope() -> Iterator[None]:
    """A context in which this thread runs a callback."""
    token = _in_callback.set(True)
    running_callbacks.append(None)
    try:
        yield
    finally:
        running_callbacks.pop()
        _in_callback.reset(token)


def in_callback() -> bool:
    """Whether this thread, or the one whose context it copied, is running a callback."""
    return _in_callback.get()
