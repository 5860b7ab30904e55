"""A server scripted by the test, and a handler that records events."""

from __future__ import annotations

import socket
from typing import Any

from jaxd.connection.connection import ClientConnection
from jaxd_protocol.wire import BulkChannel, BulkStream, Frame
from tests.shared.wire.by_hand import DispatchingConnection


class RecordingHandler:
    """What a client says when it is asked; notes events."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, Any]] = []

    def answer_request(self, verb: str, args: tuple[Any, ...]) -> Any:
        if verb == "describe":
            return ("described", *args), (memoryview(b"beside"),)
        raise KeyError(verb)

    def call_back(self, about: Any, question: Any, buffers: Any) -> Any:
        if about is None:
            raise KeyError("no call")
        return ((about, *question), (memoryview(b"beside"),))

    def event(self, connection: Any, number: int, kind: str, content: Any) -> None:
        self.events.append((number, kind, content))


class ScriptedServer(DispatchingConnection):
    """Keeps what arrives, until the test replies."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(None, BulkChannel(BulkStream(sock)), {})
        self.requests: list[tuple[int, str, Any, Any]] = []
        self.replies: list[tuple[int, Any, Any]] = []

    def on_request(self, seq: int, verb: str, args: tuple[Any, ...], frame: Frame) -> None:
        self.requests.append((seq, verb, args, [bytes(buffer) for buffer in frame.buffers]))

    def on_reply(self, seq: int, value: Any, failed: bool, frame: Frame) -> None:
        self.replies.append((seq, value, [bytes(buffer) for buffer in frame.buffers]))

    def take(self) -> tuple[int, str, Any, Any]:
        """The next request."""
        self.dispatch(self._channel.recv())
        return self.requests.pop(0)


ConnectedPair = tuple[ClientConnection, ScriptedServer, RecordingHandler]
