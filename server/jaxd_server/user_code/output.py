"""The output of calls: what a client's function prints, warns of and logs belongs to its call.

While a function is traced, output of its thread belongs to its call. While a program runs, the
Python functions that it calls back run in threads of XLA's own, which know nothing of any call:
their output belongs to the call that holds the callback lock. No other thread prints on a server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from jaxd_server.runtime.events import Emit

MAX_TEXT: Final = 1 << 16
"""Characters that one event carries at most; longer text is sent as several."""


class Voice:
    """The output of one call, as events of that call. Thread-safe; whole lines stay whole.

    Args:
        emit: takes the events `print`, `warned` and `logged`.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lines: dict[str, str] = {}  # what was written to a stream and has no end yet
        self._unflushed: set[str] = set()  # streams to which more was sent than flushed
        self._lock = threading.RLock()  # guards these, and keeps the events in order

    def write(self, stream: str, text: str) -> None:
        """Something is printed to `stdout` or `stderr`; it is sent when its line is complete."""
        with self._lock:
            text = self._lines.pop(stream, "") + text
            end = text.rfind("\n") + 1
            if len(text) - end >= MAX_TEXT:
                end = len(text)
            if text[end:]:
                self._lines[stream] = text[end:]
            self._print(stream, text[:end])

    def flush(self, stream: str) -> None:
        """Sends what has no end yet, and has the caller's stream flushed."""
        with self._lock:
            rest = self._lines.pop(stream, "")
            if rest or stream in self._unflushed:
                self._print(stream, rest, flush=True)

    def say(self, kind: str, content: dict[str, Any]) -> None:
        """Sends an event, behind all that was printed before it."""
        with self._lock:
            self.end()
            self._emit(kind, content)

    def end(self) -> None:
        """Sends what has no end yet, of both streams."""
        with self._lock:
            for stream in list(self._lines):
                self._print(stream, self._lines.pop(stream))

    def _print(self, stream: str, text: str, *, flush: bool = False) -> None:
        for start in range(0, max(len(text), flush), MAX_TEXT):  # to flush takes an event as well
            part = text[start : start + MAX_TEXT]
            self._emit("print", {"stream": stream, "text": part, "flush": flush})
        if flush:
            self._unflushed.discard(stream)
        elif text:
            self._unflushed.add(stream)


_speaks: ContextVar[Voice | None] = ContextVar("speaks", default=None)
_floor: list[Voice] = []
"""The output of the call that holds the callback lock, if one does."""

_callers: list[Voice] = []
"""Those of all calls whose programs call Python now."""


def current_voice() -> Voice | None:
    """The output of the call that this thread works for; None: of no call."""
    voice = _speaks.get()
    if voice is None and _floor:
        try:
            return _floor[-1]
        except IndexError:  # its turn has just ended
            return None
    return None if voice is _NOBODY else voice


@contextmanager
def speaking(voice: Voice) -> Iterator[None]:
    """Within it, what this thread prints belongs to a call."""
    token = _speaks.set(voice)
    try:
        yield
    finally:
        _speaks.reset(token)
        voice.end()


_NOBODY: Final = Voice(lambda *_: None)
"""Of no call: what is printed so goes to the server's log."""


@contextmanager
def speaking_for_one() -> Iterator[None]:
    """Within it, output belongs to the only call that can have caused it; else to the server.

    For a callback of a program that does not take turns.
    """
    if _speaks.get() is not None:
        yield
        return
    running = list(_callers)
    with speaking(running[0] if len(running) == 1 else _NOBODY):
        yield


def note_caller(voice: Voice) -> None:
    """Registers a call whose program calls Python and begins to run."""
    _callers.append(voice)


def forget_caller(voice: Voice) -> None:
    """It has ended."""
    if voice in _callers:
        _callers.remove(voice)
        voice.end()


@contextmanager
def give_the_floor(voice: Voice) -> Iterator[None]:
    """Within it, output of threads without a call of their own belongs to this call."""
    _floor.append(voice)
    try:
        yield
    finally:
        _floor.remove(voice)
        voice.end()
