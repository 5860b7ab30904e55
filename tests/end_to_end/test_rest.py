"""A worker that nobody needs gives its device back, and nobody notices but by the clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jaxd
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.live_server import LiveServer
from tests.server.host_process import ask


@pytest.mark.soak
def test_the_next_call_finds_a_warm_worker(start_live: Callable[..., LiveServer]) -> None:
    """Over the connection that an idle client has left open, too: it is made again."""
    server = start_live("--rest-after-s", "0.5")
    with jaxd.connect(server.unix) as client:
        double = client.persistent_call(lambda x: 2 * x)
        assert double(4.0) == 8
        first = client.statistics().epoch
        server.wait_for("worker_exited", epoch=first)
        control = control_path(Address.parse(server.unix))
        assert ask(control, ask="status")["worker_state"] == "resting"
        held = double.remote(5.0)  # while it is held, the new worker stays
        seen = client.statistics()
        assert float(held) == 10
    assert seen.epoch > first
    assert (seen.traces, seen.compiles, seen.executable_loads) == (0, 0, 1)
