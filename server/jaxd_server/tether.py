"""The worker's end of the line to its host: JSON objects, one a line, both ways."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Tether"]


class Tether:
    """Answers the host's questions and tells it events; its end is the host's end.

    Args:
        sock: connected to the host.
        status: what the host is told when it asks.
        on_drain: called once when the host asks the worker to stop.
        on_lost: called when the host is gone.
        on_order: called with what else the host asks for, in the thread that listens.
    """

    def __init__(
        self,
        sock: socket.socket,
        status: Callable[[], Mapping[str, Any]],
        on_drain: Callable[[], None],
        on_lost: Callable[[], None],
        on_order: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self._sock = sock
        self._status = status
        self._on_drain = on_drain
        self._on_lost = on_lost
        self._on_order = on_order
        self._lock = threading.Lock()  # one line at a time
        threading.Thread(target=self._listen, name="jaxd-tether", daemon=True).start()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one object; a host that is gone is noticed by the listener."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._sock.sendall(line)
        except OSError:
            return

    def _listen(self) -> None:
        with self._sock.makefile("rb") as lines:
            try:
                for line in lines:
                    self._answer(json.loads(line))
            except (OSError, ValueError):  # the end, or no JSON: either way no host to speak with
                pass
        self._on_lost()

    def _answer(self, message: Mapping[str, Any]) -> None:
        if message.get("ask") == "status":
            self.tell({"answer": message["id"], "status": dict(self._status())})
        elif message.get("ask") == "drain":
            self.tell({"event": "draining"})
            self._on_drain()
        else:
            self._on_order(message)
