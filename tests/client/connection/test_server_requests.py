"""What the server says by itself, to a client, by a server that the test plays by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from jaxd.connection import server_requests
from jaxd_protocol.errors import ConnectionLost, JaxdError, PackingError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import decode_failure
from tests.client.played_server import ConnectedPair, RecordingHandler
from tests.end_to_end.gates import in_thread
from tests.server.staging import until


@pytest.mark.parametrize("error", [KeyError, IndexError, TypeError])
def test_a_question_that_has_no_answer_ends_the_connection(
    ends: ConnectedPair, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The server must not wait for it for ever, whatever is wrong with what it asks."""

    def fail(*_: Any) -> Any:
        raise error

    client, server, answering = ends
    monkeypatch.setattr(answering, "answer_request", fail)
    waiting = in_thread(client.request, "call", ())
    server.take()
    server.send_request(77, "unheard of", ())
    assert isinstance(waiting.exception(10), ConnectionLost)


@pytest.mark.parametrize(
    "event", [(), (1, "stage"), (1, "stage", None), (1, "stage", "[]"), ("1", "stage", "{}")]
)
def test_an_event_that_is_none_ends_the_connection(
    ends: ConnectedPair, event: tuple[Any, ...]
) -> None:
    """With an error of ours for whoever waits."""
    client, server, answering = ends
    waiting = in_thread(client.request, "call", ())
    server.take()
    server.send_request(78, "event", event)
    assert isinstance(waiting.exception(10), JaxdError)
    assert answering.events == []


def test_a_function_is_called_back_for_the_call_that_is_open(ends: ConnectedPair) -> None:
    """What that was about is known; whatever happens there, the server is told."""
    client, server, _ = ends
    waiting = in_thread(lambda: client.request("call", (), about="a call"))
    seq, *_ = server.take()
    for open_call in (seq, seq + 1):
        server.send_request(77, "callback", (open_call, "x"))
        server.dispatch(server._channel.recv())
    (_, answer, beside), (_, (status, failure), _) = server.replies
    assert (answer, beside) == (("a call", seq, "x"), [b"beside"])
    assert (status, str(decode_failure(failure))) == (FAILED, "'no call'")
    server.send_reply(seq, 1)
    waiting.result(10)


def test_code_that_cannot_be_packed_is_an_answer(
    ends: ConnectedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that it is asked for fails with it, and the connection lives on."""
    client, server, answering = ends

    def refuse(verb: str, args: tuple[Any, ...]) -> Any:
        raise PackingError("not this one")

    monkeypatch.setattr(answering, "answer_request", refuse)
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    server.send_request(77, "code", (b"f",))
    server.dispatch(server._channel.recv())
    ((_, (status, failure), _),) = server.replies
    assert (status, type(decode_failure(failure))) == (FAILED, PackingError)
    server.send_reply(seq, 1)
    assert waiting.result(10)[0] == 1


class BlockingHandler(RecordingHandler):
    """Calls back when the test says so; the first one makes a call of its own before."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.connection: Any = None

    def call_back(self, about: Any, question: Any, buffers: Any) -> Any:
        if question[1] == "calls":
            return self.connection.request("inner", (), about="inner")[0], ()
        assert self.go_on.wait(30)
        return ("done",), ()


def threads() -> int:
    """That answer questions."""
    return sum(one.name == "jaxd-answer" for one in threading.enumerate())


@pytest.fixture
def patient(ends: ConnectedPair) -> Iterator[BlockingHandler]:
    """In place of who answers; all of its threads have ended afterwards."""
    answering = ends[0]._handler = BlockingHandler()
    answering.connection = ends[0]
    yield answering
    answering.go_on.set()
    until(lambda: not threads())


def test_many_questions_do_not_take_many_threads(
    ends: ConnectedPair, patient: BlockingHandler
) -> None:
    """Those that have none wait for one, and all are answered."""
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    for number in range(400):
        server.send_request(1000 + number, "callback", (seq, "waits"))
    until(lambda: threads() == 128)  # 64, and as many for the call that is open
    patient.go_on.set()
    for _ in range(400):
        server.dispatch(server._channel.recv())
    assert {number for number, *_ in server.replies} == set(range(1000, 1400))
    server.send_reply(seq, 1)
    waiting.result(10)


def test_a_server_that_asks_without_end_is_left(
    ends: ConnectedPair, patient: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes memory here."""
    monkeypatch.setattr(server_requests, "_MAX_WAITING", 10)
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    with suppress(EOFError):
        for number in range(200):
            server.send_request(1000 + number, "callback", (seq, "waits"))
    assert "no honest one" in str(waiting.exception(10))
    assert not client.alive


def test_what_is_called_back_may_make_calls_that_call_back(
    ends: ConnectedPair, patient: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open call has room for questions of its own: nobody waits for who waits."""
    monkeypatch.setattr(server_requests, "_MAX_THREADS_PER_CALL", 1)
    client, server, _ = ends
    outer = in_thread(client.request, "call", ())
    numbers = [server.take()[0]]
    for depth in range(6):
        server.send_request(1000 + depth, "callback", (numbers[-1], "calls"))
        numbers.append(server.take()[0])
    for number in reversed(numbers):
        server.send_reply(number, ("done",))
        if number != numbers[0]:
            server.dispatch(server._channel.recv())
    assert outer.result(10)[0] == ("done",)
    assert [number for number, *_ in server.replies] == [1000 + d for d in reversed(range(6))]
