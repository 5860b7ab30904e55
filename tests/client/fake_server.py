"""A fake server: performs the handshake, and replies as the test defines."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.network.handshake import MAGIC, UNIX, finish_handshake, handshake_with_client
from jaxd_protocol.wire import BulkChannel, BulkStream, Frame
from tests.shared.wire.by_hand import DispatchingConnection

Reply = tuple[Any, Sequence[memoryview]]


class Request(NamedTuple):
    """One request.

    Attributes:
        verb, args: what was asked.
        buffers: the data beside it.
        ask: asks the client in turn; returns its value and its buffers.
        hang_up: ends the connection.
        number: the client's for it.
    """

    verb: str
    args: tuple[Any, ...]
    buffers: list[bytes]
    ask: Callable[..., tuple[Any, list[bytes]]]
    hang_up: Callable[[], None]
    number: int


def warm_reply(verdict: str = "compile", seconds: float = 1.5) -> Reply:
    """The reply to a call that warms."""
    return (OK, json.dumps({"verdict": verdict, "seconds": seconds})), ()


def failed(error: Exception) -> Reply:
    """The reply that raises on the other side."""
    return (FAILED, encode_failure(error)), ()


def accept_handshake(sock: socket.socket, **more: Any) -> bool:
    """Greets as a server; False for somebody who only looked whether anybody listens."""
    if sock.recv(len(MAGIC), socket.MSG_WAITALL) != MAGIC:
        return False
    handshake_with_client(sock, UNIX, (), "me")
    welcome: Mapping[str, Any] = {
        "auth": "none",
        "session": "s",
        "slots": 32,
        "max_frame_bytes": 1 << 24,
        "epoch": 1,
        "pid": os.getpid(),
        **more,
    }
    finish_handshake(sock, {}, None, dict(welcome))
    return True


class Listener:
    """Serves each connection to a Unix socket in a thread of its own, from now until `close`.

    Args:
        path: of the socket.
        serve: is given each connection.
    """

    def __init__(self, path: str, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(path)
        self._sock.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more connections."""
        self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join()
        self._sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()


class FakeServer:
    """Listens at once; `close` ends it.

    Attributes:
        address: for clients.
        answers: for each verb what to reply: a value for JSON, or a function of the `Request`.
        asked: every request so far.
    """

    welcome: Mapping[str, Any] = {}
    """What its welcome has beside what that of each server has."""

    def __init__(self, path: str, **answers: Any) -> None:
        self.address = f"unix://{path}"
        self.answers: dict[str, Any] = answers
        self.asked: list[Request] = []
        self._connections: list[_Connection] = []
        self._listener = Listener(path, self._serve)

    def of(self, verb: str) -> list[Request]:
        """The requests of one kind."""
        return [asked for asked in self.asked if asked.verb == verb]

    def answer(self, asked: Request) -> Reply:
        """What to reply."""
        self.asked.append(asked)
        answer = self.answers[asked.verb]
        if callable(answer):
            reply: Reply = answer(asked)
            return reply
        return json.dumps(answer), ()

    @staticmethod
    def hang_up(asked: Request) -> Reply:
        """An answer that never arrives."""
        asked.hang_up()
        return None, ()

    def close(self) -> None:
        """Ends it with all its connections."""
        self._listener.close()
        for connection in self._connections:
            connection.shut()

    def _serve(self, sock: socket.socket) -> None:
        if not accept_handshake(sock, **self.welcome):
            return sock.close()
        connection = _Connection(sock, self.answer)
        self._connections.append(connection)
        return connection.serve()


class _Connection(DispatchingConnection):
    def __init__(self, sock: socket.socket, answer: Callable[[Request], Reply]) -> None:
        super().__init__(None, BulkChannel(BulkStream(sock)), {})
        self._answer = answer
        self._numbers = itertools.count(1)
        self._questions: dict[int, Future[tuple[Any, list[bytes]]]] = {}

    def serve(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.dispatch(self._channel.recv())
        self.shut()

    def on_request(self, seq: int, verb: str, args: tuple[Any, ...], frame: Frame) -> None:
        buffers = [bytes(each) for each in frame.buffers]
        asked = Request(verb, args, buffers, self._ask, self._hang_up, seq)
        threading.Thread(target=self._reply, args=(seq, asked), daemon=True).start()

    def _reply(self, seq: int, asked: Request) -> None:
        with suppress(EOFError):
            self.send_reply(seq, *self._answer(asked))

    def _hang_up(self) -> None:
        self._channel.stream.sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, verb: str, *args: Any) -> tuple[Any, list[bytes]]:
        seq = next(self._numbers)
        question = self._questions[seq] = Future()
        self.send_request(seq, verb, args)
        return question.result(20)

    def on_reply(self, seq: int, value: Any, failed: bool, frame: Frame) -> None:
        self._questions.pop(seq).set_result((value, [bytes(each) for each in frame.buffers]))
