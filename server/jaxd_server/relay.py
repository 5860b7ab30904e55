"""Passes a worker's output on to the host's stderr and remembers its last lines."""

from __future__ import annotations

import os
import threading
from collections import deque

__all__ = ["OutputRelay"]

_STDERR = 2
_LAST_LINES = 20
_LONGEST_LINE_BYTES = 1 << 16


class OutputRelay(threading.Thread):
    """Copies what arrives on the pipe `descriptor`, which it owns, until its writers are gone.

    A thread, so that a terminal that is held up holds up neither the worker's pipe for long nor
    the host's answers.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="jaxd-output", daemon=True)
        self._descriptor = descriptor
        # Written by this thread alone; deque.append is atomic, so readers need no lock.
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def run(self) -> None:
        """Copies line by line; started by `start()`."""
        with open(self._descriptor, "rb") as pipe:
            while line := pipe.readline(_LONGEST_LINE_BYTES):
                self._last_lines.append(line.decode(errors="replace").rstrip())
                _write_all(line)

    def last_lines(self, patience_s: float = 1.0) -> list[str]:
        """The last lines of a worker that has exited.

        Waits at most `patience_s` seconds for what is still in the pipe: a process that the worker
        left behind may hold it open.
        """
        self.join(patience_s)
        return list(self._last_lines)


def _write_all(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(_STDERR, data) :]
    except OSError:
        pass  # a full disk or a closed terminal must not block the worker's own writing
