"""Bytes of all connections, the closed ones included."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from jaxd_protocol.wire import BulkChannel

__all__ = ["Traffic"]

_NOBODY: Final = "-"
"""No principal is called so."""


class Traffic:
    """Adds up what each channel counts for itself. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[BulkChannel, str] = {}
        self._received: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards all of the above

    def add(self, channel: BulkChannel, principal: str = "") -> None:
        """A connection of a principal began."""
        with self._lock:
            self._open[channel] = principal

    def remove(self, channel: BulkChannel) -> None:
        """A connection ended; its bytes still count."""
        with self._lock:
            principal = self._open.pop(channel)
            self._received[principal] += channel.reader.bytes_received
            self._sent[principal] += channel.writer.bytes_sent

    def forget(self, principal: str) -> None:
        """Whoever gets the name again begins at nothing; in the sum of all it still counts.

        Its connections have ended, or are about to: what is on its way is nobody's.
        """
        with self._lock:
            for channel in [one for one, whose in self._open.items() if whose == principal]:
                self._open[channel] = _NOBODY
            for counted in (self._received, self._sent):
                counted[_NOBODY] += counted.pop(principal, 0)

    def totals(self, principal: str | None = None) -> dict[str, int]:
        """`bytes_received` and `bytes_sent` since the worker started, of one or of all."""
        with self._lock:
            received, sent = self._received.copy(), self._sent.copy()
            for channel, whose in self._open.items():
                received[whose] += channel.reader.bytes_received
                sent[whose] += channel.writer.bytes_sent
        if principal is None:
            return {"bytes_received": received.total(), "bytes_sent": sent.total()}
        return {"bytes_received": received[principal], "bytes_sent": sent[principal]}
