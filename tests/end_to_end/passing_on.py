"""A TCP proxy on loopback; what becomes of the bytes is for others to say."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal, Self

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST, what is unsent is lost

Way = Literal["up", "down"]
"""`up` is towards the server."""


class TcpForwarder:
    """Forwards connections to a port of loopback; a context manager. Thread-safe.

    Args:
        port: where to.

    Attributes:
        port: where it listens.
        upstream: where to, from the next connection on.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # guards the one before
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """For `jaxd.connect`."""
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends all connections; new ones can be made."""
        raise NotImplementedError

    def shut(self) -> None:
        """Ends all connections and refuses new ones, until `open_again`."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()

    def open_again(self) -> None:
        """Listens on the same port again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends it, and all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        """Takes charge of one direction of a new connection."""
        raise NotImplementedError

    def _end(self, some: Iterable[socket.socket], *, reset: bool) -> bool:
        """Ends connections, in order or as a lost network does; whether there were any."""
        with self._lock:
            ended = self._open.intersection(some)
            self._open -= ended
        for one in ended:
            with suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            one.close()
        return bool(ended)

    def _accept(self) -> None:
        listener = self._listener
        with suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.upstream))
                except OSError:  # nobody listens there now
                    near.close()
                    continue
                with self._lock:
                    self._open |= {near, far}
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._carry("up", near, far)
                self._carry("down", far, near)


class Stalling(TcpForwarder):
    """Passes on the first 64 kB of what the server sends; connections stay open."""

    def cut(self) -> None:
        """Ends all connections; new ones can be made."""
        self._end(self._open, reset=False)

    def _carry(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        most = 1 << (16 if way == "down" else 40)
        threading.Thread(target=self._pass_on, args=(source, sink, most), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, most: int) -> None:
        with suppress(OSError):  # it has ended
            while most > 0 and (data := source.recv(min(most, 1 << 16))):
                sink.sendall(data)
                most -= len(data)
