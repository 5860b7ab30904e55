"""JSON objects, one a line: the messages of host channels and of the control socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from jaxd_protocol.base.process import start_daemon

MAX_LINE_BYTES = 16 << 20
"""Far above the size of a worker's status with all of its running calls."""

MAX_TENANT_LINE_BYTES = 1 << 20
"""The limit for the worker of one principal: reading its lines must not delay the others."""


def encode_line(message: Mapping[str, Any]) -> bytes:
    """`message` as one line."""
    return json.dumps(message).encode() + b"\n"


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The objects that arrive, until the other end closes; other tasks can run after each.

    Raises:
        ValueError: when a line is too long, is not JSON, or is not an object.
    """
    try:
        while line := await reader.readline():
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not a JSON object")  # noqa: TRY004  as for a line that is not JSON
            yield message
            await asyncio.sleep(0)  # `readline` does not suspend while there are lines
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ConnectionError:
        return  # the other process has ended


class HostChannel:
    """The worker's end of the host channel: answers requests, sends events.

    Args:
        sock: connected to the host.
        status: returns the answer to the request `status`.
        on_drain: called when the host asks the worker to stop.
        on_order: called with any other request, in the thread that reads.
        on_lost: called when the host has ended; by default this process ends, since without a
            host it could not be stopped or replaced.
    """

    def __init__(
        self,
        sock: socket.socket,
        status: Callable[[], Mapping[str, Any]],
        on_drain: Callable[[], None],
        on_order: Callable[[Mapping[str, Any]], None],
        on_lost: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self._sock = sock
        self._status = status
        self._on_drain = on_drain
        self._on_lost = on_lost
        self._on_order = on_order
        self._lock = threading.Lock()  # one line at a time
        start_daemon("jaxd-tether", self._listen)

    def notify(self, message: Mapping[str, Any]) -> None:
        """Sends one object; the thread that reads notices when the host has ended."""
        line = encode_line(message)
        with suppress(OSError), self._lock:
            self._sock.sendall(line)

    def _listen(self) -> None:
        try:
            with self._sock.makefile("rb") as lines, suppress(OSError, ValueError):
                for line in lines:
                    self._answer(json.loads(line))
        finally:  # whatever it was: without a valid host the worker ends as well
            self._on_lost()

    def _answer(self, message: Mapping[str, Any]) -> None:
        if message.get("ask") == "status":
            self.notify({"status": dict(self._status())})
        elif message.get("ask") == "drain":
            self.notify({"event": "draining"})
            self._on_drain()
        else:
            self._on_order(message)
