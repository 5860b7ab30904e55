from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from rpyc.utils.factory import unix_connect

import jaxd
from tests.server.in_process import InProcessServer
from tests.server.staging import until

if TYPE_CHECKING:
    import pytest


def test_a_client_is_welcomed(in_process_server: InProcessServer) -> None:
    """It learns its session and what the server is."""
    with jaxd.connect(in_process_server.unix) as client:
        info = client.info()
        assert len(info["session"]) == 32
        assert in_process_server.parts.status.now()["connections"] == 1
        assert in_process_server.parts.status.now()["sessions"] == 1
    until(lambda: in_process_server.parts.status.now()["connections"] == 0)


def test_a_client_that_reconnects_finds_its_session(in_process_server: InProcessServer) -> None:
    """Which outlives its connections."""
    client = in_process_server.client()
    first = client.info()["session"]
    client.close()
    assert client.info()["session"] == first
    assert in_process_server.parts.status.now()["sessions"] == 1


def test_many_clients_are_served_at_once(in_process_server: InProcessServer) -> None:
    """Each in a thread of its own, on all listeners of the worker."""
    clients = [in_process_server.client() for _ in range(5)]
    assert [client.statistics().connections for client in clients] == [5] * 5


def test_open_connections_outlive_a_closed_endpoint(in_process_server: InProcessServer) -> None:
    """A worker that drains finishes what runs."""
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    assert float(double(1.0)) == 2.0
    for endpoint in in_process_server.endpoints:
        endpoint.close()
    assert float(double(4.0)) == 8.0


def test_a_stock_client_is_a_connection_and_counts_as_traffic(
    in_process_server: InProcessServer,
) -> None:
    """So that a server that serves only such clients does not stop for idleness."""
    with unix_connect(in_process_server.unix.removeprefix("unix://")) as stock:
        assert stock.root.ping() == "pong"
        status = in_process_server.parts.status.now()
        assert status["connections"] == status["sessions"] == 1
        assert status["bytes_received"] > 0
        assert status["bytes_sent"] > 0
    until(lambda: in_process_server.parts.status.now()["connections"] == 0)
    assert in_process_server.parts.status.now()["sessions"] == 0


def test_what_a_stock_client_sends_counts_towards_the_budget(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is given back, also when the client dies in the middle of a message."""
    budget, held = in_process_server.parts._worker_context.budget, list[int]()
    answer = in_process_server.parts.pipeline.answer

    def watched(*args: Any) -> Any:
        held.append(budget.used)
        return answer(*args)

    monkeypatch.setattr(in_process_server.parts.pipeline, "answer", watched)
    numbers = np.random.default_rng(0).random(10_000)  # rpyc would compress zeros away
    data = [*map(cloudpickle.dumps, (lambda x: x[0], (numbers,), {}))]
    with unix_connect(in_process_server.unix.removeprefix("unix://")) as stock:
        stock.root.call(*data)
        until(lambda: budget.used == 0)
    assert held[0] > 50_000
    with in_process_server.raw() as sock:
        sock.sendall(struct.pack("!LB", 1_000_000, 0) + bytes(10))
        until(lambda: budget.used > 1_000_000)
    until(lambda: budget.used == 0)
