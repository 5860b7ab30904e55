"""A request that waits for its reply."""

from __future__ import annotations

import threading

import pytest

from jaxd.pending import Pending
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.wire import Frame


def test_waking_opens_each_gate_once() -> None:
    """A second waking, after an interrupt, has nothing to open."""
    pending = Pending()
    gates = [threading.Lock(), threading.Lock()]
    for gate in gates:
        gate.acquire()
        pending.gates.append(gate)
    pending.wake()
    pending.wake()
    assert all(gate.acquire(blocking=False) for gate in gates)


def test_the_result_is_value_and_frame() -> None:
    """As the reply brought them."""
    pending = Pending()
    pending.value, pending.frame = 7, Frame(b"")
    assert pending.result() == (7, b"")


def test_an_error_takes_the_place_of_the_result() -> None:
    """The same one for everybody who asks."""
    pending = Pending()
    pending.error = ConnectionLost("gone. Call again.")
    with pytest.raises(ConnectionLost, match="gone"):
        pending.result()
