"""Bytes of all connections, the closed ones included."""

from __future__ import annotations

import threading

from jaxd_protocol.wire import BulkChannel

__all__ = ["Traffic"]


class Traffic:
    """Adds up what each channel counts for itself. Thread-safe."""

    def __init__(self) -> None:
        self._open: set[BulkChannel] = set()
        self._received = 0
        self._sent = 0
        self._lock = threading.Lock()  # guards all of the above

    def add(self, channel: BulkChannel) -> None:
        """A connection began."""
        with self._lock:
            self._open.add(channel)

    def remove(self, channel: BulkChannel) -> None:
        """A connection ended; its bytes still count."""
        with self._lock:
            self._open.discard(channel)
            self._received += channel.reader.bytes_received
            self._sent += channel.writer.bytes_sent

    def totals(self) -> dict[str, int]:
        """`bytes_received` and `bytes_sent` since the worker started."""
        with self._lock:
            return {
                "bytes_received": self._received + sum(c.reader.bytes_received for c in self._open),
                "bytes_sent": self._sent + sum(c.writer.bytes_sent for c in self._open),
            }
