"""Passes a worker's output on to the host's stderr and remembers its last lines."""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

_STDERR = 2
_LAST_LINES = 20
_MAX_LINE_BYTES = 1 << 16
_FINAL_READ_S: Final = 0.25
"""How long output is still copied after `end`; the host may wait for that."""


class OutputRelay(threading.Thread):
    """Copies what arrives on the pipe `descriptor`, which it owns, until its writers are gone.

    A thread, so that a blocked terminal delays neither the worker for long nor the answers of the
    host.

    Args:
        descriptor: the reading end of the pipe.

    Raises:
        OSError: when the process may open no more files; the pipe is closed then.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="jaxd-output", daemon=True)
        try:
            self._ended, ending = os.pipe()
        except OSError:
            os.close(descriptor)
            raise
        self._ending: int | None = ending
        self._pipe = io.BufferedReader(_EndedPipe(descriptor, self._ended))
        self._lock = threading.Lock()  # guards _ending, which must not be written once closed
        # Written by this thread alone; deque.append is atomic, so readers need no lock.
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def run(self) -> None:
        """Copies line by line; started by `start()`."""
        try:
            with self._pipe as pipe:
                while line := pipe.readline(_MAX_LINE_BYTES):
                    self._last_lines.append(line.decode(errors="replace").rstrip())
                    _write_all(line)
        finally:
            self._close_ending()

    def end(self) -> None:
        """Stops after the present content of the pipe, although there may be writers.

        A process that the worker has started may outlive it, and would cost the host a thread and
        a file descriptor.
        """
        with self._lock:
            if self._ending is not None:
                os.write(self._ending, b".")

    def discard(self) -> None:
        """Closes the descriptors, if it is not started."""
        self._pipe.close()
        self._close_ending()

    def last_lines(self, patience_s: float = 1.0) -> list[str]:
        """The last lines of a worker that has exited.

        Waits at most `patience_s` seconds for the rest of the pipe: a process that the worker has
        started may hold it open.
        """
        self.join(patience_s)
        return list(self._last_lines)

    def _close_ending(self) -> None:
        with self._lock:
            ending, self._ending = self._ending, None
        if ending is not None:
            os.close(ending)
            os.close(self._ended)


class _EndedPipe(io.FileIO):
    """A pipe that ends when it is empty and another descriptor is readable."""

    def __init__(self, descriptor: int, ending: int) -> None:
        super().__init__(descriptor)
        self._ending = ending
        self._poll = select.poll()
        for one in (descriptor, ending):
            self._poll.register(one, select.POLLIN)
        self._over_at: float | None = None

    def readinto(self, buffer: Any, /) -> int:
        return 0 if self._is_over() else super().readinto(buffer)

    def _is_over(self) -> bool:
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        if self._ending not in ready:
            return False
        now = time.monotonic()
        if self._over_at is None:
            self._over_at = now + _FINAL_READ_S
        return self.fileno() not in ready or now >= self._over_at


def _write_all(data: bytes) -> None:
    with suppress(OSError):  # a full disk or a closed terminal must not block the worker
        while data:
            data = data[os.write(_STDERR, data) :]
