"""Counts the calls that run in this process instead of on a server, until the server knows."""

from __future__ import annotations

import threading
import time
from typing import Final

from jaxd_protocol.base.process import reset_after_fork

_REPORT_INTERVAL_S: Final = 1.0


class FallbackCounts:
    """The counts that were not reported yet. Thread-safe.

    Attributes:
        pending: whether there are any; cheap to ask.
    """

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forgets those of the parent, which reports them itself."""
        self._lock = threading.Lock()  # guards all of these
        self._calls = self._functions = 0
        self._next_s = 0.0
        self.pending = False

    def add(self, *, new_function: bool) -> bool:
        """Counts one call; whether the counts are to be reported now."""
        with self._lock:
            self._calls += 1
            self._functions += new_function
            self.pending = True
            return time.monotonic() >= self._next_s

    def take(self) -> tuple[int, int]:
        """The numbers of calls and of functions that are to be reported; they are zero then."""
        with self._lock:
            found = self._calls, self._functions
            self._calls = self._functions = 0
            self._next_s = time.monotonic() + _REPORT_INTERVAL_S
            self.pending = False
            return found
