"""Routes what clients' functions print, warn of and log to the calls that they belong to.

Streams, warnings and loggers are of the whole process. So each of the three has something in its
way here that asks `current_output` first; what is the server's own goes where it always went.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
import warnings
from typing import Any, Final, TextIO

from jaxd_server.user_code.output import current_output

_JAX_LOGGERS: Final = ("jax", "jaxlib", "absl")
"""What these log below warnings is about themselves, and much."""

_COMPILES: Final = frozenset(
    {"jax._src.compiler", "jax._src.dispatch", "jax._src.interpreters.pxla", "jax._src.pjit"}
)
"""Those that `jax_log_compiles` makes say what is compiled. Whether a client wants to know, its own
jax says; it is not kept for others, for whom nothing is compiled."""


def capture_user_output() -> None:
    """Has what user code says from now on heard by its own client. To be called once."""
    sys.stdout = _Stream("stdout", sys.stdout)
    sys.stderr = _Stream("stderr", sys.stderr)
    warnings.showwarning = _Warnings(warnings.showwarning).show
    logging.captureWarnings(False)
    root = logging.getLogger()
    root.addHandler(CallLogHandler())
    root.setLevel(1)  # which of them are shown, the client's loggers decide


def capture_warnings() -> None:
    """Has all warnings heard in threads that speak for a call, whatever code has set since.

    Each client has filters of its own, and warns once of each thing by itself.
    """
    first = warnings.filters[0] if warnings.filters else None
    if first is None or first[1] is not _match_in_call_threads:
        warnings.simplefilter("always")  # which also tells the interpreter that they changed
        wanted: Any = ("always", _match_in_call_threads, Warning, None, 0)
        warnings.filters[:] = [  # type: ignore[index]
            wanted,
            *(each for each in warnings.filters[1:] if each[1] is not _match_in_call_threads),
        ]


class _MatchInCallThreads:
    """In the place of a regular expression: fits in all threads that speak for a call."""

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


class _Warnings:
    """Shows warnings."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """In the place of `warnings.showwarning`."""
        call_output = current_output()
        if call_output is None or file is not None:
            self._before(message, category, filename, lineno, file, line)
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
