from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost, PackingError, ProtocolError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire import Frame
from jaxd_server.rpc import client_proxy as module
from jaxd_server.rpc.client_proxy import ClientProxy, PendingQuestions
from tests.server.staging import at_once, join, start, until

FRAME: Any = object()


def test_an_answer_goes_to_who_asked() -> None:
    """Whatever the order."""
    questions = PendingQuestions()

    def ask(index: int) -> Any:
        return questions.ask(index, lambda: None)

    def answer_all() -> None:
        for seq in reversed(range(5)):
            until(lambda seq=seq: seq in questions._open)  # type: ignore[misc]
            questions.answer(seq, (f"answer {seq}",), False, FRAME)

    thread = start(answer_all)
    assert at_once(5, ask) == [((f"answer {seq}",), FRAME) for seq in range(5)]
    join([thread])
    assert questions._open == {}


def test_an_answer_that_nobody_waits_for_is_nothing() -> None:
    """Nor is a second one."""
    questions = PendingQuestions()
    questions.answer(7, "x", False, FRAME)

    def send() -> None:
        questions.answer(7, ("first",), False, FRAME)
        questions.answer(7, ("second",), False, FRAME)

    assert questions.ask(7, send) == (("first",), FRAME)


def test_what_a_client_cannot_say_is_raised() -> None:
    """Its own error where it says why, else that it could not."""
    questions = PendingQuestions()
    failure = (FAILED, encode_failure(PackingError("it holds a lock")))
    with pytest.raises(PackingError, match="it holds a lock"):
        questions.ask(1, lambda: questions.answer(1, failure, False, FRAME))
    with pytest.raises(ProtocolError, match="could not answer: KeyError"):
        questions.ask(1, lambda: questions.answer(1, "KeyError", True, FRAME))


def test_nobody_waits_for_a_client_that_is_gone() -> None:
    """Who waits is told at once, and who comes later does not ask."""
    questions = PendingQuestions()
    with pytest.raises(ConnectionLost, match="went away"):
        questions.ask(1, questions.close)

    def send() -> None:
        raise EOFError

    with pytest.raises(ConnectionLost, match="went away"):
        PendingQuestions().ask(1, send)
    sent: list[int] = []
    with pytest.raises(ConnectionLost, match="went away"):
        questions.ask(2, lambda: sent.append(2))
    assert sent == []
    questions.close()


def test_a_client_that_does_not_answer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may be waiting for the same function."""
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.001)
    with pytest.raises(ConnectionLost, match="Call again"):
        PendingQuestions().ask(1, lambda: None)


def test_code_is_one_buffer() -> None:
    """Anything else is no answer."""

    def client(*buffers: bytes) -> ClientProxy:
        frame = Frame()
        frame.buffers = tuple(map(memoryview, buffers))

        def answered(seq: int, *_: Any) -> None:
            proxy.questions.answer(seq, (), False, frame)

        connection: Any = SimpleNamespace(numbers=itertools.count(), send_request=answered)
        nothing: Any = SimpleNamespace()
        proxy = ClientProxy(connection, nothing, nothing)
        return proxy

    assert bytes(client(b"code").code(b"fingerprint")) == b"code"
    with pytest.raises(ProtocolError, match="no code"):
        client().code(b"fingerprint")
