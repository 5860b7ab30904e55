from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.wire import BulkChannel, BulkConnection
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

    def send_reply(
        self, seq: int, value: Any, buffers: Sequence[memoryview] = (), *, more: bool = False
    ) -> None:
        assert not more
        self._send((seq, value))

    def send_request(self, seq: int, verb: str, args: tuple[Any, ...]) -> None:
        self._send((verb, *args))


class Held:
    """What the calls of a connection hold, as far as replies change it."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.held = 0

    def end_call(self, nbytes: int) -> None:
        self.ended.append(nbytes)

    def hold(self, nbytes: int) -> None:
        self.held += nbytes


class Rig:
    """An send queue of such a line."""

    def __init__(self, max_bytes: int = 100) -> None:
        self.line, self.held = Line(), Held()
        self.box = SendQueue(
            cast("BulkConnection", self.line),
            cast("BulkChannel", None),
            cast("ConnectionShare", self.held),
            max_bytes,
        )


def test_a_reply_is_sent_by_its_own_thread_when_nothing_waits() -> None:
    """Waking another one would cost more than the rest of a small call."""
    rig = Rig()
    rig.box.now(7, (DONE, ()), 5)
    assert rig.line.threads == [threading.current_thread()]
    assert (rig.line.sent, rig.held.ended) == ([(7, DONE)], [5])


def test_a_reply_comes_behind_what_its_call_has_said() -> None:
    """Whoever leaves it does not wait for the client, and its bytes are held until it is sent."""
    rig = Rig()
    rig.line.reads.clear()
    rig.box.send("event", 7, "said", "hello")
    rig.box.now(7, ((OK, b""), [memoryview(b"data")]), 5)
    rig.box.later(8, (DONE, ()), 6)
    assert (rig.line.sent, rig.held.ended, rig.held.held) == ([], [], 4)
    rig.line.reads.set()
    until(lambda: len(rig.held.ended) == 2)
    assert rig.line.sent == [("event", 7, "said", "hello"), (7, DONE), (8, DONE)]
    until(lambda: rig.held.held == 0)


def test_events_for_a_client_that_does_not_read_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reports one never waits."""
    monkeypatch.setattr(module, "MAX_WAITING_EVENTS", 4)
    rig = Rig()
    rig.line.reads.clear()
    for number in range(20):
        rig.box.notify("event", number)
    assert len(rig.box._waiting) <= 4
    rig.line.reads.set()
    until(lambda: not len(rig.box._waiting))
    assert len(rig.line.sent) <= 5


def test_what_calls_say_waits_for_the_client_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A print is not lost because a client is slow; one that is gone hears nothing."""
    monkeypatch.setattr(module, "_MAX_WAITING_OUTPUT", 2)
    rig = Rig()
    rig.line.reads.clear()
    for number in range(2):
        rig.box.send("event", number)
    third = start(rig.box.send, "event", 2)
    monkeypatch.setattr(module, "_MAX_WAIT_S", 0.01)
    rig.box.send("event", "dropped")
    assert third.is_alive()
    rig.line.reads.set()
    third.join(PATIENCE_S)
    until(lambda: len(rig.line.sent) == 3)
    rig.box.close()
    rig.box.send("event", "nobody hears")
    assert rig.line.sent == [("event", 0), ("event", 1), ("event", 2)]


def test_a_result_that_is_too_large_is_an_error_that_says_what_to_do() -> None:
    """Nothing of it is sent."""
    rig = Rig(max_bytes=3)
    rig.box.now(7, ((OK, b""), [memoryview(b"data")]), 5)
    ((number, (verdict, failure)),) = rig.line.sent
    assert (number, verdict) == (7, FAILED)
    assert "--max-result-bytes" in str(decode_failure(failure))


def test_whatever_happens_the_client_has_an_answer_and_its_room_back() -> None:
    """Unless it is gone."""
    rig = Rig()
    rig.line.error = ValueError("no such type")
    rig.box.now(7, (DONE, ()), 5)
    ((_, (verdict, failure)),) = rig.line.sent
    assert verdict == FAILED
    assert "could not send the result" in str(decode_failure(failure))
    rig.line.error = EOFError()
    rig.box.now(8, (DONE, ()), 6)
    assert rig.held.ended == [5, 6]
    assert len(rig.line.sent) == 1
