"""Passes a worker's output on to the host's stderr and remembers its last lines."""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from typing import Any, Final

_STDERR = 2
_LAST_LINES = 20
_MAX_LINE_BYTES = 1 << 16
_FINAL_READ_S: Final = 0.25
"""So long what one principal left behind may go on; the host may wait for the end of it."""


class OutputRelay(threading.Thread):
    """Copies what arrives on the pipe `descriptor`, which it owns, until its writers are gone.

    A thread, so that a terminal that is held up holds up neither the worker's pipe for long nor
    the host's answers.

    Args:
        descriptor: where the output arrives.
        can_end: whether `end` can stop it although there are writers.

    Raises:
        OSError: when the process may open no more files; the pipe is closed then.
    """

    def __init__(self, descriptor: int, *, can_end: bool = False) -> None:
        super().__init__(name="jaxd-output", daemon=True)
        try:
            ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if can_end else None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._ending = ending
        self._lock = threading.Lock()  # guards _ending, which is not to be written once closed
        # Written by this thread alone; deque.append is atomic, so readers need no lock.
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def run(self) -> None:
        """Copies line by line; started by `start()`."""
        try:
            with self._opened() as pipe:
                while line := pipe.readline(_MAX_LINE_BYTES):
                    self._last_lines.append(line.decode(errors="replace").rstrip())
                    _write_all(line)
        finally:
            self._forget_ending()

    def end(self) -> None:
        """Stops after what is in the pipe now, although there may be writers.

        A process that the worker has left behind may do so for ever, and each that does would
        cost the host a thread and a file.
        """
        with self._lock:
            if self._ending is not None:
                os.eventfd_write(self._ending, 1)

    def discard(self) -> None:
        """Closes the descriptors, if it is not started."""
        os.close(self._descriptor)
        self._forget_ending()

    def last_lines(self, patience_s: float = 1.0) -> list[str]:
        """The last lines of a worker that has exited.

        Waits at most `patience_s` seconds for what is still in the pipe: a process that the worker
        left behind may hold it open.
        """
        self.join(patience_s)
        return list(self._last_lines)

    def _opened(self) -> io.BufferedReader:
        if self._ending is None:
            return open(self._descriptor, "rb")
        return io.BufferedReader(_EndedPipe(self._descriptor, self._ending))

    def _forget_ending(self) -> None:
        with self._lock:
            ending, self._ending = self._ending, None
        if ending is not None:
            os.close(ending)


class _EndedPipe(io.FileIO):
    """A pipe that is at its end when it is empty and another descriptor can be read."""

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
    try:
        while data:
            data = data[os.write(_STDERR, data) :]
    except OSError:
        pass  # a full disk or a closed terminal must not block the worker's own writing
