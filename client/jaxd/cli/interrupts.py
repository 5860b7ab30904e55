"""Handlers of the signals that end a command: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling_interrupts(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Installs a handler of both signals; unlike SIG_IGN, it is not inherited by a child process.

    Also where they were ignored, as in the background jobs of a shell script.
    """
    before = {number: signal.signal(number, handler) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Defers both signals: at the end, `KeyboardInterrupt` is raised if one has arrived."""
    arrived: list[int] = []
    with handling_interrupts(lambda number, _: arrived.append(number)):
        yield
    if arrived:
        raise KeyboardInterrupt
