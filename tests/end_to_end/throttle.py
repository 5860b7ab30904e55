"""A TCP proxy on loopback that makes a slow link of a fast one, counts bytes, and can be cut.

Time passes in it, because that is what it is for; what it counts does not depend on time.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from jaxd import Client
from tests.end_to_end.passing_on import TcpForwarder, Way

MBIT: Final = 125_000
"""Bytes a second."""

_PIECE: Final = 1 << 14


class Throttle(TcpForwarder):
    """Passes connections on to a port of loopback; a context manager. Thread-safe.

    Args:
        port: where to.
        bytes_per_s: what passes in a second, each way; None: as fast as it comes.
        latency_s: how much later each byte arrives.

    Attributes:
        port: where it listens.
        passed: bytes so far that came through, by way: `up` is towards the port.
        cuts: how often connections were cut.
    """

    def __init__(self, port: int, bytes_per_s: float | None = None, latency_s: float = 0.0) -> None:
        super().__init__(port)
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self.passed: dict[Way, int] = {"up": 0, "down": 0}
        self.cuts = 0
        self._limits: dict[Way, int] = {}
        self._free_at: dict[Way, float] = {"up": 0.0, "down": 0.0}

    def cut_after(self, way: Way, nbytes: int) -> None:
        """Cuts everything as soon as so many bytes more have come through; once."""
        with self._lock:
            self._limits[way] = self.passed[way] + nbytes

    def cut(self) -> None:
        """Ends all connections as a lost network does; new ones can be made."""
        with self._lock:
            self._limits.clear()
        if self._end(self._open, reset=True):
            with self._lock:
                self.cuts += 1

    def _carry(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        """Two threads: what one has read, the other one writes when it has arrived."""
        line: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        threading.Thread(target=self._read, args=(way, source, line), daemon=True).start()
        threading.Thread(target=self._write, args=(way, sink, line), daemon=True).start()

    def _read(
        self, way: Way, source: socket.socket, line: SimpleQueue[tuple[float, bytes]]
    ) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_PIECE)
            except OSError:  # cut
                data = b""
            sent_at = self._occupy(way, len(data))
            _wait_until(sent_at)  # so that no more is on the line than the line holds
            line.put((sent_at + self._latency_s, data))

    def _occupy(self, way: Way, nbytes: int) -> float:
        """When the line has taken so many bytes more."""
        if self._bytes_per_s is None:
            return time.monotonic()
        with self._lock:
            start = max(self._free_at[way], time.monotonic())
            self._free_at[way] = start + nbytes / self._bytes_per_s
            return self._free_at[way]

    def _write(self, way: Way, sink: socket.socket, line: SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):  # cut
            while True:
                arrives_at, data = line.get()
                _wait_until(arrives_at)
                allowed = self._count(way, len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    return self.cut()
                if not data:
                    return self._hang_up(sink)

    def _count(self, way: Way, nbytes: int) -> int:
        """How many of so many bytes may come through; they are counted."""
        with self._lock:
            limit = self._limits.get(way)
            allowed = nbytes if limit is None else min(nbytes, limit - self.passed[way])
            self.passed[way] += allowed
            return allowed

    def _hang_up(self, sink: socket.socket) -> None:
        """The other end has closed, so this one does."""
        with self._lock:
            self._open.discard(sink)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        sink.close()


def _wait_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def far(client: Client) -> Client:
    """A client that takes its server for one that is far away."""
    sent_before = client.caller.session.values().deduplicator
    assert sent_before is not None
    sent_before()._policy._speeds.clear()
    sent_before()._policy._speeds.append(0.0)
    return client
