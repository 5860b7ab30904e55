"""A TCP proxy on loopback that breaks connections in one way, at one place; then it is harmless."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal, Self

__all__ = ["Proxy", "Way"]

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST, what is unsent is lost
_PIECE: Final = 1 << 16

Way = Literal["up", "down"]
Fault = Literal["cut", "reset", "hole", "hold", "bytes", "slow"]


class Proxy:
    """Passes connections on to a port of loopback; a context manager. Thread-safe.

    Args:
        port: where to.

    Attributes:
        struck: set when the fault has happened.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._fault: Fault | None = None
        self._way: Way = "up"
        self._left = 0
        self._healed = threading.Event()
        self.struck = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # guards these
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """For `jaxd.connect`."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

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

    def _end(self, some: Iterable[socket.socket], *, reset: bool) -> None:
        with self._lock:
            ended = self._open.intersection(some)
            self._open -= ended
        for one in ended:
            with suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._upstream))
                with self._lock:
                    self._open |= {near, far}
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for way, source, sink in (("up", near, far), ("down", far, near)):
                    threading.Thread(
                        target=self._pump, args=(way, source, sink), daemon=True
                    ).start()

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
