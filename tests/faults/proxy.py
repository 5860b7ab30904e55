"""A TCP proxy on loopback that breaks connections in one way, at one place; then it is harmless."""

from __future__ import annotations

import socket
import threading
import time
from typing import Final, Literal

from tests.end_to_end.passing_on import TcpForwarder, Way

_PIECE: Final = 1 << 16

Fault = Literal["cut", "reset", "hole", "hold", "bytes", "slow"]


class Proxy(TcpForwarder):
    """Passes connections on to a port of loopback; a context manager. Thread-safe.

    Args:
        port: where to.

    Attributes:
        struck: set when the fault has happened.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._fault: Fault | None = None
        self._way: Way = "up"
        self._left = 0
        self._healed = threading.Event()
        self.struck = threading.Event()

    def strike(self, fault: Fault, way: Way, after: int) -> None:
        """Has something happen once, when so many bytes more have passed in that direction.

        Args:
            fault: `cut` ends the connection in order, `reset` does not, `hole` swallows what comes,
                `hold` keeps it until `heal`, `bytes` passes it on one by one, `slow` in small
                pieces with pauses.
            way: `up` is towards the server.
            after: bytes.
        """
        with self._lock:
            self._fault, self._way, self._left = fault, way, after
            self._healed.clear()
            self.struck.clear()

    def heal(self) -> None:
        """Passes on what it held; from now on nothing happens."""
        with self._lock:
            self._fault = None
        self._healed.set()

    def cut(self) -> None:
        """Ends all connections."""
        self._end(self._open, reset=False)

    def close(self) -> None:
        """Ends it, and all connections."""
        self.heal()
        super().close()

    def _carry(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        threading.Thread(target=self._pump, args=(way, source, sink), daemon=True).start()

    def _pump(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_PIECE):
                self._pass(way, data, sink)
            sink.shutdown(socket.SHUT_WR)  # the other end learns of the end
        except OSError:
            self._end({source, sink}, reset=True)  # as a kernel does where nobody listens any more

    def _pass(self, way: Way, data: bytes, sink: socket.socket) -> None:
        with self._lock:
            fault = self._fault if way == self._way else None
            before = min(self._left, len(data)) if fault else len(data)
            if fault:
                self._left -= before
        sink.sendall(data[:before])
        if before == len(data):
            return
        self.struck.set()
        self._break(fault, data[before:], sink)

    def _break(self, fault: Fault | None, rest: bytes, sink: socket.socket) -> None:
        if fault in ("cut", "reset"):
            with self._lock:
                self._fault = None  # it happens once
            self._end(self._open, reset=fault == "reset")
            raise OSError("broken on purpose")
        if fault == "hole":
            return  # as long as it is not healed
        if fault == "hold":
            self._healed.wait()
            sink.sendall(rest)
        pieces = {"bytes": 1, "slow": 1 << 13}.get(fault or "", len(rest))
        for start in range(0, len(rest), pieces) if fault in ("bytes", "slow") else ():
            sink.sendall(rest[start : start + pieces])
            if fault == "slow":
                time.sleep(0.002)
