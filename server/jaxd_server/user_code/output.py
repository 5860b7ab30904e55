"""The output of calls: what a client's function prints, warns of and logs belongs to its call.

While a function is traced, output of its thread belongs to its call. While a program runs, the
Python functions that it calls back run in threads of XLA's own, which know nothing of any call:
their output belongs to the call that holds the callback lock. No other thread prints on a server.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TextIO

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


_current: ContextVar[CallOutput | None] = ContextVar("call output", default=None)
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
    """Removes a call that has ended."""
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


_JAX_LOGGERS: Final = ("jax", "jaxlib", "absl")
"""Below warnings, these log much about themselves."""

_COMPILES: Final = frozenset(
    {"jax._src.compiler", "jax._src.dispatch", "jax._src.interpreters.pxla", "jax._src.pjit"}
)
"""Those that log compilations with `jax_log_compiles`. Whether a client shows these is a setting of
its own jax; they are not kept for other clients, for whom nothing is compiled."""


def capture_user_output() -> None:
    """Sends the output of user code to its own client from now on. To be called once."""
    sys.stdout = _Stream("stdout", sys.stdout)
    sys.stderr = _Stream("stderr", sys.stderr)
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    logging.captureWarnings(False)
    root = logging.getLogger()
    root.addHandler(CallLogHandler())
    root.setLevel(1)  # the client's loggers filter them


def capture_warnings() -> None:
    """Lets all warnings pass in threads that work for a call, whatever filters code has set.

    Each client has filters of its own, and warns once of each thing by itself.
    """
    first = warnings.filters[0] if warnings.filters else None
    if first is None or first[1] is not _match_in_call_threads:
        warnings.simplefilter("always")  # which also invalidates the interpreter's cache of filters
        wanted: Any = ("always", _match_in_call_threads, Warning, None, 0)
        warnings.filters[:] = [  # type: ignore[index]
            wanted,
            *(each for each in warnings.filters[1:] if each[1] is not _match_in_call_threads),
        ]


class _MatchInCallThreads:
    """In the place of a regular expression: matches in all threads that work for a call."""

    def match(self, _: str) -> bool:
        return current_output() is not None


_match_in_call_threads: Any = _MatchInCallThreads()


class _Stream(io.TextIOBase):
    """A standard stream, for each thread that of its call."""

    def __init__(self, name: str, below: TextIO) -> None:
        self._name = name
        self._below = below

    @property
    def name(self) -> str:
        return f"<{self._name}>"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def buffer(self) -> Any:
        return self._below.buffer

    def fileno(self) -> int:
        return self._below.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        call_output = current_output()
        if call_output is None:
            return self._below.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        call_output.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        call_output = current_output()
        if call_output is None:
            self._below.flush()
        else:
            call_output.flush(self._name)


def _show_warning(
    before: Any,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """`warnings.showwarning`, after the previous one."""
    call_output = current_output()
    if call_output is None or file is not None:
        before(message, category, filename, lineno, file, line)
        return
    content = {
        "text": str(message),
        "category": [category.__module__, category.__qualname__],
        "bases": [base.__name__ for base in category.__mro__],
        "file": filename,
        "line": lineno,
    }
    call_output.send("warned", content)


class CallLogHandler(logging.Handler):
    """Passes log records to the call that logs them; the only handler of the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """As of any handler."""
        call_output = current_output()
        if call_output is None:
            if record.levelno >= logging.WARNING and logging.lastResort is not None:
                logging.lastResort.handle(record)
            return
        root = record.name.partition(".")[0]
        if root in _JAX_LOGGERS and record.levelno < logging.WARNING:
            return
        try:
            content = _described(record)
        except Exception:  # noqa: BLE001  a broken message is the user's, as is its complaint
            self.handleError(record)
            return
        is_told = record.name in _COMPILES and record.levelno == logging.WARNING
        call_output.send("compiled" if is_told else "logged", content)


def _described(record: logging.LogRecord) -> dict[str, Any]:
    text = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else None
    return {
        "name": record.name,
        "level": record.levelno,
        "text": record.getMessage(),
        "file": record.pathname,
        "line": record.lineno,
        "function": record.funcName,
        "traceback": text if record.exc_text is None else record.exc_text,
        "created": record.created,
    }
