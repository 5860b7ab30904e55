"""A server that completes the handshake as a real one, and then sends scripted messages."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from jaxd_protocol.errors import JaxdError
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.wire import BulkChannel, BulkStream, Frame
from jaxd_protocol.wire.connection import encode_reply, encode_request
from tests.client.fake_server import Listener, accept_handshake
from tests.hostile.exchanges import Exchange, Step
from tests.shared.wire.by_hand import DispatchingConnection

_SILENT: Final = frozenset({"drop", "cancel", "bye", "unshare"})
_ANSWERED: Final = {
    "describe": ((bytes,),),
    "code": ((bytes,),),
    "read": ((bytes, tuple),),
    "confirm": ((bytes, tuple),),
    "callback": ((int, bytes, bytes, int, int, int),),
}
_GOOD: Final = (OK, b"N", b"", b"", b"")
"""What is said to what nobody has planned: a call that is repeated, or one after the other."""


class HostileServer:
    """Listens at once; `close` ends it.

    Attributes:
        address: for clients.
        said: all that clients have sent since it was emptied, for who looks for secrets in it.
    """

    def __init__(self, path: str) -> None:
        self.address = f"unix://{path}"
        self.said: deque[bytes] = deque(maxlen=4096)
        self._planned: Exchange | None = None
        self._lock = threading.Lock()  # guards _planned
        self._listener = Listener(path, self._serve)

    def plan(self, exchange: Exchange | None) -> None:
        """What to say to the next request."""
        with self._lock:
            self._planned = exchange

    def taken(self) -> Exchange | None:
        """What was planned, once."""
        with self._lock:
            planned, self._planned = self._planned, None
            return planned

    def close(self) -> None:
        """No more clients."""
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError, EOFError, JaxdError):
            if accept_handshake(sock):
                _Connection(sock, self).serve()
        sock.close()


class _Connection(DispatchingConnection):
    """One client. One thread reads, and asks in between."""

    def __init__(self, sock: socket.socket, server: HostileServer) -> None:
        super().__init__(None, BulkChannel(BulkStream(sock)), {})
        self._server = server
        self._answered: set[int] = set()
        self._latest = 0
        # a client may go on without reading what it was told, so nobody who reads may wait for it
        self._send_queue: SimpleQueue[tuple[bytes, Sequence[memoryview]] | None] = SimpleQueue()
        threading.Thread(target=self._send_all, daemon=True).start()

    def serve(self) -> None:
        """Until the client has enough of it."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    self.dispatch(self._channel.recv())
        finally:
            self._send_queue.put(None)
            self.shut()

    def send_reply(
        self, seq: int, value: Any, buffers: Sequence[memoryview] = (), *, more: bool = False
    ) -> None:
        """Soon."""
        self._send_queue.put((encode_reply(seq, value), buffers))

    def send_request(
        self,
        seq: int,
        verb: str,
        args: tuple[Any, ...],
        buffers: Sequence[memoryview] = (),
        descriptors: Sequence[int] = (),
        *,
        more: bool = False,
    ) -> None:
        """Soon."""
        self._send_queue.put((encode_request(seq, verb, args), buffers))

    def _send_all(self) -> None:
        with suppress(EOFError, OSError, JaxdError):
            while (message := self._send_queue.get()) is not None:
                self._channel.send(*message, ())

    def on_request(self, seq: int, verb: str, args: tuple[Any, ...], frame: Frame) -> None:
        """A call, or something else that a client asks for."""
        if verb in _SILENT:
            return None
        planned = self._server.taken() if verb not in ("share", "adopt") else None
        if planned is None:
            self._latest = seq
            return self.send_reply(seq, _GOOD)
        self._latest = seq
        for step in planned.steps:
            self._say(step, seq, args)
            if self._latest != seq:  # the client has gone on to something else
                return None
        return None

    def _say(self, step: Step, seq: int, args: tuple[Any, ...]) -> None:
        buffers = [memoryview(each) for each in step.buffers]
        if step.verb == "reply":
            return self.send_reply(seq, step.args, buffers)
        own = next(self.numbers)
        said: Sequence[Any] = step.args
        if step.verb in ("event", "callback"):
            said = tuple(seq if each is None else each for each in said)
        elif step.verb == "describe" and said == (b"",):
            said = args[:1]
        self.send_request(own, step.verb, tuple(said), buffers)
        if tuple(map(type, said)) not in _ANSWERED.get(step.verb, ()):
            return None  # nobody has to answer that
        while own not in self._answered and self._latest == seq:
            self.dispatch(self._channel.recv())
        self._answered.discard(own)
        return None

    def on_reply(self, seq: int, value: Any, failed: bool, frame: Frame) -> None:
        """What a client answers may hold what it should have kept for itself."""
        self._server.said.append(repr(value).encode())
        self._server.said.extend(bytes(each) for each in frame.buffers)
        self._answered.add(seq)
