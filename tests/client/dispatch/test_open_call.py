"""What follows a failed attempt of a call, however its caller waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from jaxd.dispatch.caller import OpenCall
from jaxd.dispatch.session import MAX_WORKERS
from jaxd_protocol.errors import (
    Busy,
    ConnectionLost,
    DeadlineExceeded,
    ServerDraining,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.failures import encode_failure

LOST = ConnectionLost("lost")


@pytest.fixture
def session() -> Mock:
    """A session whose connections are all to one worker."""
    session = Mock()
    session.progress.made = None
    session.elsewhere.return_value = None
    session.current.return_value.connection.worker = (1, 7)
    return session


@pytest.fixture
def open_call(session: Mock) -> OpenCall:
    """In its first attempt, which is sent."""
    snapshot = SimpleNamespace(name="step")
    call: Any = SimpleNamespace(
        spec=SimpleNamespace(snapshot=snapshot), timeout_s=None, _replace=Mock()
    )
    found = OpenCall(session, call)
    found.begin_attempt()
    found.is_sent = True
    return found


def test_a_call_goes_to_so_many_workers_while_they_are_replaced(
    open_call: OpenCall, session: Mock
) -> None:
    """Each connection is drained, and a loss in between starts the count anew."""
    replaced = encode_failure(WorkerReplaced("goes."))
    pauses = [open_call.pause_after(replaced) for _ in range(MAX_WORKERS)]
    assert pauses == [0.0] * (MAX_WORKERS - 1) + [None]
    assert session.drain.call_count == MAX_WORKERS
    open_call.check_repeatable(LOST)
    assert open_call.pause_after(replaced) == 0.0


def test_only_a_busy_server_is_tried_again(open_call: OpenCall) -> None:
    """Around the time that it gives; any other failure is the caller's."""
    pause_s = open_call.pause_after(encode_failure(Busy("full.", retry_after_s=0.2)))
    assert pause_s is not None
    assert 0.1 <= pause_s <= 0.3
    for error in (ServerDraining("stops."), DeadlineExceeded("late.")):
        assert open_call.pause_after(encode_failure(error)) is None


def test_data_is_released_once(open_call: OpenCall, session: Mock) -> None:
    """A reply that comes after it was abandoned gives back what the server keeps for it."""
    transfer = session.transfer_router.return_value.prepare.return_value
    open_call.load()
    reply = (OK, b"N", b"")
    assert open_call.end_attempt(reply)
    open_call.end_attempt(reply)
    transfer.release.assert_called_once_with(reply)
    open_call.load()
    open_call.abandon()
    open_call.end_attempt(reply)
    assert transfer.release.call_count == 2
    open_call.release_abandoned()
    open_call.release_abandoned()
    transfer.dedup_plan.abandon.assert_called_once_with()
