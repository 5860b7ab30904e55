"""Nobody waits for somebody else's slow call: not the status page, not a client, not a thread."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd.connection.control_client import send_request
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.end_to_end.gates import Gate, stop_at, stop_when_run
from tests.live_server import LiveServer


def status(live: LiveServer) -> dict[str, Any]:
    """What the control socket says."""
    reply = send_request(control_path(Address.parse(live.unix)), {"ask": "status"})
    assert reply is not None
    return reply


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate of this test's own."""
    return Gate(tmp_path / "gate")


@pytest.fixture
def other(live: LiveServer) -> Iterator[Client]:
    """A second client of the common server."""
    with connect(live.unix) as client:
        yield client


def test_the_status_shows_a_function_that_is_being_traced(
    live: LiveServer, client: Client, gate: Gate
) -> None:
    """The control socket answers meanwhile, and the call is gone from it afterwards."""
    call = client.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        seen = status(live)
        assert seen["worker_state"] == "ready"
        assert seen["worker"]["running_calls"] == 1
        assert "stopping" in seen["worker"]["running"][0]["function"]
        assert seen["worker"]["running"][0]["seconds"] >= 0
    assert float(call.result()) == 2.0
    assert client.statistics().calls > 0
    assert status(live)["worker"]["running"] == []


@pytest.mark.slow
def test_the_status_command_while_a_function_is_being_traced(
    live: LiveServer, client: Client, gate: Gate
) -> None:
    """`jaxd status` shows the call, to people and to programs."""
    call = client.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        for flags in ((), ("--json",)):
            command = [sys.executable, "-P", "-m", "jaxd.cli", "status", *flags]
            said = subprocess.run(
                command, env=live.environment, capture_output=True, text=True, check=True
            ).stdout
            assert "stopping" in said
        assert json.loads(said)["worker"]["running_calls"] == 1
    call.result()


@pytest.mark.own_server  # its host is asked
def test_the_status_command_says_what_was_paid_and_saved(live: LiveServer, client: Client) -> None:
    """The seconds, what is in memory, and what is on disk; the names are those of `statistics`."""
    client.persistent_call(lambda x: x * 2)(1.0)
    said = subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", "status"],
        env=live.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert " tracing, " in lines["paid"]
    assert "; saved " in lines["paid"]
    assert " programs, " in lines["holds"]
    assert lines["disk"].endswith(" files")
    seen = status(live)["worker"]
    assert set(client.statistics()._fields) <= set(seen)
    assert seen["trace_s"] > 0


@pytest.mark.parametrize("same", [True, False], ids=["one connection", "two clients"])
@pytest.mark.parametrize("make", [stop_at, stop_when_run])
def test_a_warm_call_while_another_is_slow(
    client: Client, other: Client, gate: Gate, make: Any, same: bool
) -> None:
    """Whether the slow one is traced or run."""
    quick = (client if same else other).persistent_call(lambda x: x * 2)
    quick(1.0)
    call = client.persistent_call(make(gate.path)).submit(np.float32(-1))
    with gate.reached():
        assert [float(quick(float(i))) for i in range(20)] == [2.0 * i for i in range(20)]
        assert quick.submit(2.0).result() == 4.0
        assert not call.done()
    assert float(call.result()) == 0.0


def test_a_new_function_while_another_is_run(client: Client, other: Client, gate: Gate) -> None:
    """What is slow to run does not keep others from being built."""
    call = client.persistent_call(stop_when_run(gate.path)).submit(np.float32(-1))
    with gate.reached():
        assert float(other.persistent_call(lambda x: x * 3, extra_key=gate.path)(2.0)) == 6.0
    call.result()


def test_a_call_that_used_to_be_quick(client: Client, gate: Gate) -> None:
    """The thread that reads a connection runs quick calls; when one turns slow, another reads."""
    fickle = client.persistent_call(stop_when_run(gate.path))
    quick = client.persistent_call(lambda x: x * 2)
    for _ in range(30):
        assert float(fickle(np.float32(1))) == 2.0
        quick(1.0)
    call = fickle.submit(np.float32(-1))
    with gate.reached():
        assert [float(quick(float(i))) for i in range(20)] == [2.0 * i for i in range(20)]
        assert float(fickle(np.float32(3))) == 4.0
    assert float(call.result()) == 0.0
    assert float(fickle(np.float32(4))) == 5.0


def test_more_slow_calls_than_threads(live: LiveServer, client: Client, gate: Gate) -> None:
    """Questions about the server are answered on a connection whose calls are all stuck."""
    stopping = client.persistent_call(stop_when_run(gate.path))
    stopping(np.float32(1))
    calls = [stopping.submit(np.float32(-1)) for _ in range(16)]
    with gate.reached():
        assert client.statistics().connections >= 1
        assert status(live)["worker"]["running_calls"] >= 1
    while not all(call.done() for call in calls):
        gate.let_pass()
    assert [float(call.result()) for call in calls] == [0.0] * 16


def test_a_deadline(client: Client, gate: Gate) -> None:
    """The caller is let go when its time has passed; the connection stays whole."""
    stopping = client.persistent_call(stop_at(gate.path), timeout_s=0.3)
    quick = client.persistent_call(lambda x: x * 2)
    quick(1.0)
    with pytest.raises(errors.DeadlineExceeded, match="timeout_s"):
        stopping(1.0)
    assert float(quick(4.0)) == 8.0
    gate.let_leave(client)
    call = client.persistent_call(stop_at(gate.path)).submit(1.0)  # its trace was interrupted
    with gate.reached():
        pass
    assert float(call.result()) == 2.0


def test_a_deadline_of_a_submitted_call(client: Client, gate: Gate) -> None:
    """Its future is given up in time as well."""
    call = client.persistent_call(stop_at(gate.path), timeout_s=0.3).submit(1.0)
    with pytest.raises(errors.DeadlineExceeded):
        call.result(10)
    gate.let_leave(client)
