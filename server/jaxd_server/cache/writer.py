"""The thread that writes records, so that no call waits for the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.base.timers import Timer
from jaxd_server.cache.directory import Kind
from jaxd_server.cache.record_file import Record
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import SerialExecutor, process_timers

Made = bytes | Callable[[], bytes]
"""A payload, or a function that makes it when it is written."""

_Key = tuple[Kind, bytes]
_MOST_WAITING: Final = 10_000
_MOST_BYTES: Final = 1 << 30
_PAUSE_S: Final = 60.0
_LINGER_S: Final = 1.0


class NotKept(Exception):
    """Raised by what makes a payload: there is none, and that is no trouble."""


class Troubles:
    """Says each kind of trouble once; a broken disk does not fill the log. Thread-safe."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lock = threading.Lock()  # guards _said

    def warn(self, event: str, about: str = "", **fields: Any) -> None:
        """Logs the first event of this name about the same thing."""
        with self._lock:
            first = (kind := f"{event} {about}") not in self._said
            self._said.add(kind)
        if first:
            log_event(event, level=logging.WARNING, **fields)


class _Waiting:
    """A record on its way to the disk."""

    def __init__(self, content: Any, payload: Made, troubles: Troubles) -> None:
        self.content = content
        self.bytes = len(payload) if isinstance(payload, bytes) else 0
        self._payload: Made | None = payload
        self._troubles = troubles
        # Held while the payload is made: who asks for it meanwhile waits, and gets the same.
        self._lock = threading.Lock()

    def payload(self) -> bytes | None:
        """The payload, made at the first call; None when there is none to be had."""
        with self._lock:
            if callable(self._payload):
                self._payload = self._make(self._payload)
            return self._payload

    def _make(self, make: Callable[[], bytes]) -> bytes | None:
        try:
            return make()
        except NotKept:
            return None
        except Exception as error:  # noqa: BLE001  a program that cannot be kept still runs
            reason = f"{type(error).__name__}: {error}"
            self._troubles.warn("cache_not_serialized", type(error).__name__, reason=reason)
            return None


class Writer:
    """Takes records at once and writes them one after the other. Thread-safe.

    `close` is what makes sure that everything is on disk.
    """

    def __init__(
        self,
        write: Callable[[Kind, bytes, Any, bytes], None],
        discard: Callable[[Kind, bytes], None],
        pause: Callable[[], None],
        troubles: Troubles,
    ) -> None:
        """The first three are called in its thread, `pause` at once.

        Args:
            write: writes one record; what it raises is logged, and the record forgotten.
            discard: removes a record that was dropped while it was written.
            pause: called when nothing is left to write, and once a minute.
            troubles: where warnings go.
        """
        self._write = write
        self._discard = discard
        self._pause = pause
        self._troubles = troubles
        self._queue = SerialExecutor("jaxd-store", _LINGER_S)
        self._lock = threading.Lock()  # guards everything below
        self._waiting: dict[_Key, _Waiting] = {}
        self._bytes = 0
        self._writing: _Key | None = None
        self._unwanted: _Key | None = None  # dropped while it is written
        self._closed = False
        self._next_pause: Timer | None = None
        self._queue.put(self._pause_again)

    def put(self, kind: Kind, name: bytes, content: Any, payload: Made) -> None:
        """Has a record written; takes the place of one of that name that still waits."""
        item = _Waiting(content, payload, self._troubles)
        with self._lock:
            if self._closed:
                return
            full = len(self._waiting) >= _MOST_WAITING or self._bytes + item.bytes > _MOST_BYTES
            if not full:
                self._drop((kind, name))
                self._waiting[kind, name] = item
                self._bytes += item.bytes
        if full:
            self._troubles.warn("cache_too_slow", waiting=len(self._waiting))
        else:
            self._queue.put(self._write_next)

    def _drop(self, key: _Key) -> None:
        item = self._waiting.pop(key, None)
        if item is not None:
            self._bytes -= item.bytes

    def find(self, kind: Kind, name: bytes, *, payload: bool) -> Record | None:
        """The record of that name that waits, if one does; may make its payload."""
        with self._lock:
            item = self._waiting.get((kind, name))
        if item is None:
            return None
        if not payload:
            return Record(item.content, b"")
        made = item.payload()
        return None if made is None else Record(item.content, made)

    def names(self, kind: Kind) -> list[bytes]:
        """The names of all records of a kind that wait."""
        with self._lock:
            return [name for one, name in self._waiting if one == kind]

    def drop(self, kind: Kind, name: bytes) -> None:
        """Does not write that record, and removes it when it is being written."""
        with self._lock:
            self._drop((kind, name))
            if self._writing == (kind, name):
                self._unwanted = self._writing

    def hides(self, kind: Kind, name: bytes) -> bool:
        """Whether a record of that name on disk is one that was dropped, and goes in a moment."""
        with self._lock:
            return self._unwanted == (kind, name)

    def flush(self, timeout_s: float) -> bool:
        """Returns when all that was put is written or given up; False: not in that time."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """As `flush`; nothing is taken any more."""
        with self._lock:
            self._closed = True
            if self._next_pause is not None:
                self._next_pause.cancel()
        self._queue.put(self._finish)
        return self._queue.flush(timeout_s)

    # the thread ----------------------------------------------------------------------------------

    def _write_next(self) -> None:
        with self._lock:
            key = self._writing = next(iter(self._waiting), None)
            item = self._waiting[key] if key else None
        if key and item:  # else it was dropped, or another one of its name was written
            self._guarded(lambda: self._write_one(key, item))
            if not self._waiting:
                self._guarded(self._pause)

    def _pause_again(self) -> None:
        """Now, and once a minute."""
        self._guarded(self._pause)
        with self._lock:
            if not self._closed:
                self._next_pause = process_timers.after(
                    _PAUSE_S, lambda: self._queue.put(self._pause_again)
                )

    def _finish(self) -> None:
        while self._waiting:  # what was taken just before the end has no job of its own yet
            self._write_next()
        self._guarded(self._pause)

    def _write_one(self, key: _Key, item: _Waiting) -> None:
        try:
            payload = item.payload()
            if payload is not None:
                self._write(*key, item.content, payload)
        finally:
            with self._lock:
                self._writing = None
                if self._waiting.get(key) is item:
                    self._drop(key)
                unwanted = self._unwanted == key
            if unwanted:
                self._discard(*key)
                with self._lock:
                    self._unwanted = None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the thread outlives everything
            reason = f"{type(error).__name__}: {error}"
            self._troubles.warn("cache_failed", type(error).__name__, reason=reason)
