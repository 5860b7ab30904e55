from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.wire import BulkConnection
from jaxd_server.rpc import send_queue as module
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.send_queue import SendQueue
from tests.server.staging import PATIENCE_S, start, until

if TYPE_CHECKING:
    import pytest

DONE = (OK, b"")


class Line:
    """A connection to a client that reads when the test lets it."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.reads = threading.Event()
        self.reads.set()
        self.sent: list[Any] = []
        self.threads: list[threading.Thread] = []
        self.error: Exception | None = None

    def _send(self, message: Any) -> None:
        assert self.reads.wait(PATIENCE_S)
        self.threads.append(threading.current_thread())
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.sent.append(message)

    def send_reply(self, seq: int, value: Any, buffers: Sequence[memoryview] = ()) -> None:
        self._send((seq, value))

    def send_request(self, seq: int, verb: str, args: tuple[Any, ...]) -> None:
        self._send((verb, *args))


class Held:
    """What the calls of a connection hold, as far as replies change it."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.held = 0

    def end(self, nbytes: int) -> None:
        self.ended.append(nbytes)

    def hold(self, nbytes: int) -> None:
        self.held += nbytes


class Desk:
    """An outbox of such a line."""

    def __init__(self, max_bytes: int = 100) -> None:
        self.line, self.held = Line(), Held()
        self.box = SendQueue(
            cast("BulkConnection", self.line), cast("ConnectionShare", self.held), max_bytes
        )


def test_a_reply_is_sent_by_its_own_thread_when_nothing_waits() -> None:
    """Waking another one would cost more than the rest of a small call."""
    desk = Desk()
    desk.box.now(7, (DONE, ()), 5)
    assert desk.line.threads == [threading.current_thread()]
    assert (desk.line.sent, desk.held.ended) == ([(7, DONE)], [5])


def test_a_reply_comes_behind_what_its_call_has_said() -> None:
    """Whoever leaves it does not wait for the client, and its bytes are held until it is sent."""
    desk = Desk()
    desk.line.reads.clear()
    desk.box.send("event", 7, "said", "hello")
    desk.box.now(7, ((OK, b""), [memoryview(b"data")]), 5)
    desk.box.later(8, (DONE, ()), 6)
    assert (desk.line.sent, desk.held.ended, desk.held.held) == ([], [], 4)
    desk.line.reads.set()
    until(lambda: len(desk.held.ended) == 2)
    assert desk.line.sent == [("event", 7, "said", "hello"), (7, DONE), (8, DONE)]
    until(lambda: desk.held.held == 0)


def test_events_for_a_client_that_does_not_read_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reports one never waits."""
    monkeypatch.setattr(module, "MAX_WAITING_EVENTS", 4)
    desk = Desk()
    desk.line.reads.clear()
    for number in range(20):
        desk.box.notify("event", number)
    assert len(desk.box) <= 4
    desk.line.reads.set()
    until(lambda: not len(desk.box))
    assert len(desk.line.sent) <= 5


def test_what_calls_say_waits_for_the_client_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A print is not lost because a client is slow; one that is gone hears nothing."""
    monkeypatch.setattr(module, "_MAX_WAITING_OUTPUT", 2)
    desk = Desk()
    desk.line.reads.clear()
    for number in range(2):
        desk.box.send("event", number)
    third = start(desk.box.send, "event", 2)
    monkeypatch.setattr(module, "_MAX_WAIT_S", 0.01)
    desk.box.send("event", "dropped")
    assert third.is_alive()
    desk.line.reads.set()
    third.join(PATIENCE_S)
    until(lambda: len(desk.line.sent) == 3)
    desk.box.close()
    desk.box.send("event", "nobody hears")
    assert desk.line.sent == [("event", 0), ("event", 1), ("event", 2)]


def test_a_result_that_is_too_large_is_an_error_that_says_what_to_do() -> None:
    """Nothing of it is sent."""
    desk = Desk(max_bytes=3)
    desk.box.now(7, ((OK, b""), [memoryview(b"data")]), 5)
    ((number, (verdict, failure)),) = desk.line.sent
    assert (number, verdict) == (7, FAILED)
    assert "--max-result-bytes" in str(decode_failure(failure))


def test_whatever_happens_the_client_has_an_answer_and_its_room_back() -> None:
    """Unless it is gone."""
    desk = Desk()
    desk.line.error = ValueError("no such type")
    desk.box.now(7, (DONE, ()), 5)
    ((_, (verdict, failure)),) = desk.line.sent
    assert verdict == FAILED
    assert "could not send the result" in str(decode_failure(failure))
    desk.line.error = EOFError()
    desk.box.now(8, (DONE, ()), 6)
    assert desk.held.ended == [5, 6]
    assert len(desk.line.sent) == 1
