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


class CallOutput:
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

    def send(self, kind: str, content: dict[str, Any]) -> None:
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


_current: ContextVar[CallOutput | None] = ContextVar("speaks", default=None)
_defaults: list[CallOutput] = []
"""The output of the call that holds the callback lock, if one does."""

_callers: list[CallOutput] = []
"""Those of all calls whose programs call Python now."""


def current_output() -> CallOutput | None:
    """The output of the call that this thread works for; None: of no call."""
    call_output = _current.get()
    if call_output is None and _defaults:
        try:
            return _defaults[-1]
        except IndexError:  # its turn has just ended
            return None
    return None if call_output is _SERVER_LOG else call_output


@contextmanager
def output_to(call_output: CallOutput) -> Iterator[None]:
    """Within it, what this thread prints belongs to a call."""
    token = _current.set(call_output)
    try:
        yield
    finally:
        _current.reset(token)
        call_output.end()


_SERVER_LOG: Final = CallOutput(lambda *_: None)
"""Of no call: what is printed so goes to the server's log."""


@contextmanager
def output_to_sole_caller() -> Iterator[None]:
    """Within it, output belongs to the only call that can have caused it; else to the server.

    For a callback of a program that does not take turns.
    """
    if _current.get() is not None:
        yield
        return
    running = list(_callers)
    with output_to(running[0] if len(running) == 1 else _SERVER_LOG):
        yield


def add_caller(call_output: CallOutput) -> None:
    """Registers a call whose program calls Python and begins to run."""
    _callers.append(call_output)


def remove_caller(call_output: CallOutput) -> None:
    """It has ended."""
    if call_output in _callers:
        _callers.remove(call_output)
        call_output.end()


@contextmanager
def as_default_output(call_output: CallOutput) -> Iterator[None]:
    """Within it, output of threads without a call of their own belongs to this call."""
    _defaults.append(call_output)
    try:
        yield
    finally:
        _defaults.remove(call_output)
        call_output.end()
