"""What the server says by itself, to a client, by a server that the test plays by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jaxd_protocol.calls import FAILED
from jaxd_protocol.errors import ConnectionLost, JaxdError, PackingError
from jaxd_protocol.failures import rebuild_failure
from tests.client.played_server import Ends
from tests.end_to_end.gates import in_thread


def test_questions_are_answered_while_a_call_is_open(ends: Ends) -> None:
    """With buffers beside the answer."""
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    server.send_request(77, "describe", ("key",))
    server.dispatch(server._channel.recv())
    assert server.replies == [(77, ("described", "key"), [b"beside"])]
    server.send_reply(seq, 1)
    assert waiting.result(10)[0] == 1


def test_a_question_that_has_no_answer_ends_the_connection(ends: Ends) -> None:
    """The server must not wait for it for ever."""
    client, server, _ = ends
    waiting = in_thread(client.request, "call", ())
    server.take()
    server.send_request(77, "unheard of", ())
    assert isinstance(waiting.exception(10), ConnectionLost)


def test_events_are_passed_on(ends: Ends) -> None:
    """By whoever reads, in order, before the reply."""
    client, server, answering = ends
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    for stage in ("trace", "compile"):
        server.send_request(78, "event", (seq, "stage", json.dumps({"stage": stage})))
    server.send_reply(seq, 1)
    waiting.result(10)
    assert answering.events == [(seq, "stage", {"stage": s}) for s in ("trace", "compile")]


@pytest.mark.parametrize(
    "event", [(), (1, "stage"), (1, "stage", None), (1, "stage", "[]"), ("1", "stage", "{}")]
)
def test_an_event_that_is_none_ends_the_connection(ends: Ends, event: tuple[Any, ...]) -> None:
    """With an error of ours for whoever waits."""
    client, server, answering = ends
    waiting = in_thread(client.request, "call", ())
    server.take()
    server.send_request(78, "event", event)
    assert isinstance(waiting.exception(10), JaxdError)
    assert answering.events == []


def test_a_function_is_called_back_for_the_call_that_is_open(ends: Ends) -> None:
    """What that was about is known; whatever happens there, the server is told."""
    client, server, _ = ends
    waiting = in_thread(lambda: client.request("call", (), about="a call"))
    seq, *_ = server.take()
    for open_call in (seq, seq + 1):
        server.send_request(77, "callback", (open_call, "x"))
        server.dispatch(server._channel.recv())
    (_, answer, beside), (_, (status, failure), _) = server.replies
    assert (answer, beside) == (("a call", seq, "x"), [b"beside"])
    assert (status, str(rebuild_failure(failure))) == (FAILED, "'no call'")
    server.send_reply(seq, 1)
    waiting.result(10)


def test_code_that_cannot_be_packed_is_an_answer(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that it is asked for fails with it, and the connection lives on."""
    client, server, answering = ends

    def refuse(verb: str, args: tuple[Any, ...]) -> Any:
        raise PackingError("not this one")

    monkeypatch.setattr(answering, "question", refuse)
    waiting = in_thread(client.request, "call", ())
    seq, *_ = server.take()
    server.send_request(77, "code", (b"f",))
    server.dispatch(server._channel.recv())
    ((_, (status, failure), _),) = server.replies
    assert (status, type(rebuild_failure(failure))) == (FAILED, PackingError)
    server.send_reply(seq, 1)
    assert waiting.result(10)[0] == 1
