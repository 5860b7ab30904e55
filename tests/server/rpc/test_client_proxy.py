from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.wire import Frame
from jaxd_server.rpc.client_proxy import ClientProxy
from tests.server.in_process import Source


class Rig:
    """A client that answers each question in the same way."""

    def __init__(self, value: Any = (), buffers: tuple[bytes, ...] = ()) -> None:
        self.asked: list[tuple[Any, ...]] = []
        connection: Any = SimpleNamespace(numbers=itertools.count(), send_request=self._answer)
        share: Any = SimpleNamespace()
        send_queue: Any = SimpleNamespace(
            notify=lambda *message: self.asked.append(message),
            send=lambda *message: self.asked.append(("said", *message)),
        )
        self._value, self._frame = value, Frame()
        self._frame.buffers = tuple(map(memoryview, buffers))
        self.client = ClientProxy(connection, share, send_queue)

    def _answer(self, seq: int, verb: str, args: tuple[Any, ...]) -> None:
        self.asked.append((verb, *args))
        self.client.questions.answer(seq, self._value, False, self._frame)


def test_a_client_describes_its_function() -> None:
    """Name, options and meaning; the fingerprint is part of the meaning."""
    source = Source(lambda x: x)
    rig = Rig(("f", source.options.to_bytes(), source.manifest.to_message()))
    described = rig.client.describe(b"key")
    assert described == (source.fingerprint, "f", source.options, source.manifest)
    assert rig.asked == [("describe", b"key")]


def test_code_is_one_buffer() -> None:
    """Anything else is no answer."""
    assert bytes(Rig(buffers=(b"code",)).client.code(b"fingerprint")) == b"code"
    with pytest.raises(ProtocolError, match="no code"):
        Rig().client.code(b"fingerprint")


def test_events_name_their_call() -> None:
    """And carry JSON."""
    rig = Rig()
    rig.client.emit(7, "stage", {"stage": "trace"})
    assert rig.asked == [("event", 7, "stage", json.dumps({"stage": "trace"}))]


def test_what_the_user_has_said_is_never_left_out() -> None:
    """Progress may be; a line that was printed may not."""
    rig = Rig()
    rig.client.emit(7, "print", {"text": "a line"})
    assert rig.asked == [("said", "event", 7, "print", json.dumps({"text": "a line"}))]
