"""The thread that writes records, so that no call waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.base.timers import Timer
from jaxd_server.cache.directory import Kind
from jaxd_server.cache.record_file import Record
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import SerialExecutor, process_timers

_Key = tuple[Kind, bytes]
_MOST_WAITING: Final = 10_000
_MOST_BYTES: Final = 1 << 30
_PAUSE_S: Final = 60.0
_LINGER_S: Final = 1.0


class Troubles:
    """Logs each kind of trouble once; a broken disk does not fill the log. Thread-safe."""

    def __init__(self) -> None:
        self._logged: dict[str, object] = {}

    def warn(self, event: str, about: str = "", **fields: Any) -> None:
        """Logs the first event of this name about the same thing."""
        mine = object()
        if self._logged.setdefault(f"{event} {about}", mine) is mine:  # which is one atomic step
            log_event(event, **fields)


class Writer:
    """Takes records at once and writes them one after the other. Thread-safe.

    `close` is what makes sure that everything is on disk.
    """

    def __init__(
        self,
        write: Callable[[Kind, bytes, Record], None],
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
        self._waiting: dict[_Key, Record] = {}
        self._bytes = 0
        self._writing: _Key | None = None
        self._unwanted: _Key | None = None  # dropped while it is written
        self._closed = False
        self._next_pause: Timer | None = None
        self._queue.put(self._pause_again)

    def put(self, kind: Kind, name: bytes, record: Record) -> None:
        """Has a record written; replaces one of that name that still waits."""
        with self._lock:
            if self._closed:
                return
            size = self._bytes + len(record.payload)
            full = len(self._waiting) >= _MOST_WAITING or size > _MOST_BYTES
            if not full:
                self._drop((kind, name))
                self._waiting[kind, name] = record
                self._bytes += len(record.payload)
        if full:
            self._troubles.warn("cache_too_slow", waiting=len(self._waiting))
        else:
            self._queue.put(self._write_next)

    def _drop(self, key: _Key) -> None:
        record = self._waiting.pop(key, None)
        if record is not None:
            self._bytes -= len(record.payload)

    def find(self, kind: Kind, name: bytes) -> Record | None:
        """The record of that name that waits, if one does."""
        with self._lock:
            return self._waiting.get((kind, name))

    def names(self, kind: Kind) -> list[bytes]:
        """The names of all records of a kind that wait."""
        with self._lock:
            return [name for one, name in self._waiting if one == kind]

    def drop(self, kind: Kind, name: bytes) -> None:
        """Drops that record; if it is being written, its file is removed afterwards."""
        with self._lock:
            self._drop((kind, name))
            if self._writing == (kind, name):
                self._unwanted = self._writing

    def hides(self, kind: Kind, name: bytes) -> bool:
        """Whether the file of that name is of a dropped record, and is removed in a moment."""
        with self._lock:
            return self._unwanted == (kind, name)

    def flush(self, timeout_s: float) -> bool:
        """Returns when all that was put is written or given up; False: not in that time."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """As `flush`; no further record is taken."""
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
            record = self._waiting[key] if key else None
        if key and record:  # else it was dropped, or another one of its name was written
            self._guarded(lambda: self._write_one(key, record))
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

    def _write_one(self, key: _Key, record: Record) -> None:
        try:
            self._write(*key, record)
        finally:
            with self._lock:
                self._writing = None
                if self._waiting.get(key) is record:
                    self._drop(key)
                unwanted = self._unwanted == key
            if unwanted:
                self._discard(*key)
                with self._lock:
                    self._unwanted = None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the thread survives any error
            reason = f"{type(error).__name__}: {error}"
            self._troubles.warn("cache_failed", type(error).__name__, reason=reason)
