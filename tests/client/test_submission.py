"""A submitted call: its place in the window, its deadline, its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import Cancelled, DeadlineExceeded, LimitExceeded
from tests.end_to_end.gates import Gate, stop_at
from tests.live_server import LiveServer


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function on the server waits."""
    return Gate(tmp_path / "gate")


def places(client: Client) -> int:
    """How many more calls could be submitted without waiting; takes none."""
    window = client.caller.window
    assert window is not None
    taken = 0
    while window.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        window.release()
    return taken


def test_each_call_gives_its_place_back(client: Client) -> None:
    """When it has a result, and when it has an error."""
    good = client.persistent_call(lambda x: x + 1)
    bad = client.persistent_call(lambda x: x.no_such_attribute)
    assert float(good.submit(1.0).result()) == 2.0
    before = places(client)
    with pytest.raises(AttributeError):
        bad.submit(1.0).result()
    good.submit(1.0).result()
    assert places(client) == before


def test_a_call_that_cannot_be_sent_gives_its_place_back(client: Client) -> None:
    """It is over the limit, so nothing was sent."""
    good = client.persistent_call(lambda x: x.sum())
    good(1.0 * np.ones(2))
    before = places(client)
    client.caller.connection()._channel.writer.max_frame_bytes = 1 << 20
    with pytest.raises(LimitExceeded, match="max-frame-bytes"):
        good.submit(np.ones(1 << 18))
    assert places(client) == before
    assert float(good.submit(np.ones(3)).result()) == 3.0


def test_a_deadline_ends_the_wait_and_not_the_connection(live: LiveServer, gate: Gate) -> None:
    """The reply that comes too late is dropped, and the next call is right."""
    with connect(live.unix) as client:
        slow = client.persistent_call(stop_at(gate.path), timeout_s=0.2)
        future = slow.submit(1.0)
        with gate.reached(), pytest.raises(DeadlineExceeded):
            future.result()
        double = client.persistent_call(lambda x: x * 2)
        assert float(double.submit(4.0).result()) == 8.0


def test_a_cancelled_future_stays_cancelled(client: Client, gate: Gate) -> None:
    """Its result comes and is dropped."""
    slow = client.persistent_call(stop_at(gate.path))
    future = slow.submit(1.0)
    with gate.reached():
        assert future.cancel()
    assert float(client.persistent_call(lambda x: x * 3)(2.0)) == 6.0
    assert future.cancelled()


def test_closing_the_client_ends_its_open_calls_for_good(live: LiveServer, gate: Gate) -> None:
    """They fail, and are not repeated over a new connection."""
    client = connect(live.unix)
    future = client.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        client.close()
        with pytest.raises(Cancelled, match="closed"):
            future.result()
    assert not client.caller.connected
