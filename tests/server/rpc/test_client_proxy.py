from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.wire import Frame
from jaxd_server.rpc.client_proxy import ClientProxy
from tests.server.in_process import Source


class Connection:
    """Answers what it was told to answer."""

    owner = b"me"

    def __init__(self, value: Any = (), buffers: tuple[bytes, ...] = ()) -> None:
        frame = Frame()
        frame.buffers = tuple(map(memoryview, buffers))
        self.answer = value, frame
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, verb: str, *args: Any) -> tuple[Any, Frame]:
        """The answer, whatever the question."""
        self.asked.append((verb, *args))
        return self.answer

    def notify(self, verb: str, *args: Any) -> None:
        """Notes it."""
        self.asked.append((verb, *args))

    def ask_patiently(self, verb: str, args: Any, buffers: Any) -> tuple[Any, Frame]:
        """The same."""
        self.asked.append((verb, *args, buffers))
        return self.answer

    def send(self, verb: str, *args: Any) -> None:
        """Notes it, and that it was not to be left out."""
        self.asked.append(("said", verb, *args))

    def parked(self) -> AbstractContextManager[None]:
        """Needs no preparation."""
        return nullcontext()


def test_a_client_describes_its_function() -> None:
    """Name, options and meaning; the fingerprint is part of the meaning."""
    source = Source(lambda x: x)
    connection = Connection(("f", source.options.to_bytes(), source.manifest.to_message()))
    described = ClientProxy(connection).describe(b"key")
    assert described == (source.fingerprint, "f", source.options, source.manifest)
    assert connection.asked == [("describe", b"key")]


def test_code_is_one_buffer() -> None:
    """Anything else is no answer."""
    assert bytes(ClientProxy(Connection(buffers=(b"code",))).code(b"fingerprint")) == b"code"
    with pytest.raises(ProtocolError, match="no code"):
        ClientProxy(Connection()).code(b"fingerprint")


def test_events_name_their_call() -> None:
    """And carry JSON."""
    connection = Connection()
    ClientProxy(connection).emit(7, "stage", {"stage": "trace"})
    assert connection.asked == [("event", 7, "stage", json.dumps({"stage": "trace"}))]


def test_what_the_user_has_said_is_never_left_out() -> None:
    """Progress may be; a line that was printed may not."""
    connection = Connection()
    ClientProxy(connection).emit(7, "print", {"text": "a line"})
    assert connection.asked == [("said", "event", 7, "print", json.dumps({"text": "a line"}))]
