"""A request that waits for its reply."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd.connection.shared_reader import PendingReply
from jaxd.remote_values.store import retry_once
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.wire import Frame


def test_waking_opens_each_gate_once() -> None:
    """A second waking, after an interrupt, has nothing to open."""
    pending = PendingReply()
    gates = [threading.Lock(), threading.Lock()]
    for gate in gates:
        gate.acquire()
        pending.waiter_locks.append(gate)
    pending.wake()
    pending.wake()
    assert all(gate.acquire(blocking=False) for gate in gates)


def test_the_result_is_value_and_frame() -> None:
    """As the reply brought them."""
    pending = PendingReply()
    pending.value, pending.frame = 7, Frame(b"")
    assert pending.result() == (7, b"")


def test_an_error_takes_the_place_of_the_result() -> None:
    """The same one for everybody who asks."""
    pending = PendingReply()
    pending.error = ConnectionLost("gone. Call again.")
    with pytest.raises(ConnectionLost, match="gone"):
        pending.result()


def asked(*answers: Any) -> tuple[Any, int]:
    """What comes of a question that is answered so, and how many answers are left."""
    left = list(answers)

    def ask() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        return retry_once(ask), len(left)
    except Exception as error:  # noqa: BLE001  it is what came of it
        return error, len(left)


LOST = ConnectionLost("gone")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((1, 2), (1, 1)),
        ((LOST, 2, 3), (2, 1)),
        ((LOST, LOST, 3), (LOST, 1)),
    ],
)
def test_a_question_is_asked_again_once(answers: Any, found: Any) -> None:
    """Only when its connection was lost."""
    assert asked(*answers) == found


def test_other_failures_are_answers() -> None:
    """Nobody asks again."""
    error = ValueError("no")
    assert asked(error, 2) == (error, 1)
