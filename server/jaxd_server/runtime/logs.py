"""One line per event on stderr, for people or for machines; the same in host and worker.

And the files that hold such lines and the state of a process: short, and never seen in part.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

from jaxd_protocol.base.process import lock_or_close
from jaxd_protocol.base.terminal import one_word
from jaxd_server.runtime.log_events import EVENTS

_logger = logging.getLogger("jaxd")
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(
    log_format: Literal["text", "json"],
    process: Literal["host", "door", "builder", "worker", "director"],
    principal: str | None = None,
) -> None:
    """Sends events to stderr, each with the name of the process, and its principal if it has one.

    A second call replaces the first one. Other loggers are left alone.
    """
    handler = logging.StreamHandler(sys.stderr)
    whose = {} if principal is None else {"principal": principal}
    form = _JsonLines if log_format == "json" else _TextLines
    handler.setFormatter(form(process, whose))
    _logger.handlers[:] = [handler]
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


def log_event(event: str, /, **fields: Any) -> None:
    """Logs one event; `fields` are JSON values, and None is left out. Safe from every thread.

    Within an `except` block, the line of an error has the traceback.

    Args:
        event: its name in `EVENTS`, which has the level.
        fields: those that are listed there.
    """
    level = _LEVELS[EVENTS[event].level]
    known = {name: value for name, value in fields.items() if value is not None}
    failed = level >= logging.ERROR and sys.exc_info()[0] is not None
    _logger.log(level, event, extra={"fields": known}, exc_info=failed)
    recent_events.add(event, known)


class LoggedEvent(NamedTuple):
    """An event that was logged.

    Attributes:
        number: counts up from 1.
        at: when, as `time.time()`.
        name: see `EVENTS`.
        fields: what it says.
    """

    number: int
    at: float
    name: str
    fields: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Its fields in one line, but for those that stand beside it."""
        told = ((k, v) for k, v in self.fields.items() if k not in _BESIDE)
        return " ".join(f"{name}={one_word(value)}" for name, value in told)


_BESIDE: Final = frozenset({"call", "function", "principal"})

MAX_EVENTS: Final = 200
"""How many of the last ones are remembered."""


class RecentEvents:
    """The last events of this process. Thread-safe: each step is atomic."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._events: deque[LoggedEvent] = deque(maxlen=MAX_EVENTS)

    def add(self, name: str, fields: Mapping[str, Any]) -> None:
        """Adds one that was logged just now."""
        self._events.append(LoggedEvent(next(self._numbers), time.time(), name, fields))

    def after(self, number: int) -> list[LoggedEvent]:
        """Those with greater numbers, the oldest first."""
        return [one for one in list(self._events) if one.number > number]


recent_events: Final = RecentEvents()


class _Lines(logging.Formatter):
    """Formats events of a process."""

    def __init__(self, process: str, whose: Mapping[str, str]) -> None:
        super().__init__()
        self._process = process
        self._whose = whose


class _JsonLines(_Lines):
    """`{"time": …, "level": "info", "process": "host", "event": "listening", …}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
            **self._whose,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextLines(_Lines):
    """`2025-01-31T08:15:00.123Z INFO    host   listening address=unix:///…`."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_timestamp(record)} {record.levelname:<7} {self._process:<6}"
        fields = {**self._whose, **getattr(record, "fields", {})}
        words = [head, record.getMessage(), *(f"{k}={one_word(v)}" for k, v in fields.items())]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + (
        f".{int(record.msecs):03d}Z"
    )


def replace_file(path: str, text: str) -> None:
    """Writes a file that only this user can read, such that it is never seen in part.

    Raises:
        OSError: when it cannot be written; the file is unchanged then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(f"{path}.new", flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # otherwise it could be empty after a power cut
    os.replace(f"{path}.new", path)


@contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Within it, no other process is in such a block for the folder; waits for that.

    Raises:
        OSError: when the folder cannot be opened, or locked.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and the lock with it


def claim_folder(folder: str) -> int | None:
    """Takes the lock of `locked_folder`; None: another process has it.

    Returns:
        A descriptor, with which the lock is given back; at the end of the process at the latest.
    """
    return lock_or_close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def shorten_log(path: str, most: int) -> bool:
    """Moves the content of a log that is larger than `most` bytes to `PATH.1`; whether it did.

    Whoever writes it has it open for appending, and goes on at its new beginning. What is written
    in between is lost.

    Raises:
        OSError: when there is none, or no room for the copy.
    """
    if os.path.getsize(path) <= most:
        return False
    shutil.copyfile(path, f"{path}.1")
    os.truncate(path, 0)
    return True
