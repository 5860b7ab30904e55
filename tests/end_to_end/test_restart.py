"""Workers and servers that end, and clients that hardly notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import connect, errors
from jaxd.dispatch import async_call
from jaxd.dispatch.retry import RetryBudget
from jaxd_protocol.network.addresses import Address
from tests.end_to_end.gates import Gate, advice, in_thread, stop_at, stop_when_run
from tests.live_server import LiveServer
from tests.server.staging import until

StartLive = Callable[..., LiveServer]


def stops_once(gate: str, marker: str) -> Callable[[Any], Any]:
    """A function that notes each trace, and stops at the gate unless the marker is there."""

    def function(x: Any) -> Any:
        with Path(gate + ".log").open("a") as log:
            log.write("traced\n")
        if not Path(marker).exists():
            Path(gate).read_bytes()
        return x + 1

    return function


def kill_worker(server: LiveServer) -> None:
    """Ends the worker at once, and returns when the host has noticed."""
    pid = server.worker_pid()
    os.kill(pid, signal.SIGKILL)
    server.wait_for("worker_exited", pid=pid)


# workers ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_is_replaced_under_a_connected_client(start_live: StartLive) -> None:
    """The next call finds the new worker, as if nothing had happened."""
    server = start_live()
    with connect(server.unix) as client:
        double = client.persistent_call(lambda x: x * 2)
        assert float(double(1.0)) == 2.0
        assert client.statistics().epoch == 1
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert float(double(2.0)) == 4.0
        assert client.statistics().epoch == 2


@pytest.mark.slow
def test_a_call_in_flight_is_repeated_unseen(start_live: StartLive, runtime: Path) -> None:
    """It runs again from its beginning, once, on the new worker."""
    server, gate, marker = start_live(), Gate(runtime / "gate"), runtime / "marker"
    with connect(server.unix) as client:
        function = client.persistent_call(stops_once(gate.path, str(marker)))
        call = in_thread(function, 1.0)
        with gate.reached():
            marker.touch()
            kill_worker(server)
        assert float(call.result()) == 2.0
        assert client.statistics().epoch == 2
    assert Path(gate.path + ".log").read_text() == "traced\n" * 2


@pytest.mark.soak
def test_a_submitted_call_is_repeated_with_the_arrays_that_it_was_made_with(
    start_live: StartLive, runtime: Path
) -> None:
    """Their owner has overwritten them since: in the message, in shared memory, of jax."""
    server = start_live()
    arguments: list[Any] = [np.ones(1 << 12), np.ones(1 << 18), jax.numpy.ones(1 << 12)]
    with connect(server.unix) as client:
        for number, argument in enumerate(arguments):
            gate, marker = Gate(runtime / f"gate{number}"), runtime / f"marker{number}"
            future = client.persistent_call(stops_once(gate.path, str(marker))).submit(argument)
            if isinstance(argument, np.ndarray):
                argument[:] = 7
            with gate.reached():
                marker.touch()
                kill_worker(server)
            np.testing.assert_array_equal(np.asarray(future.result()), 2)


@pytest.mark.soak
def test_a_submitted_call_of_which_there_is_no_copy_is_not_repeated(
    start_live: StartLive, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of its arrays may have overwritten them; the future holds a typed error."""
    server, gate = start_live(), Gate(runtime / "gate")
    monkeypatch.setattr(async_call, "_retry_budget", RetryBudget(100))
    with connect(server.unix) as client:
        future = client.persistent_call(stop_at(gate.path)).submit(np.ones(1 << 12, np.float32))
        with gate.reached():
            kill_worker(server)
        with pytest.raises(errors.ConnectionLost) as caught:
            future.result()
        advice(caught.value)
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0


def _exits_when_traced(x: Any) -> Any:
    import os

    os._exit(7)


def _exits_when_run(x: Any) -> Any:
    import os

    import jax

    def leave(value: Any) -> Any:
        os._exit(7)

    return jax.pure_callback(leave, jax.typeof(x), x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "function"),
    [
        pytest.param("call", _exits_when_traced, marks=pytest.mark.soak),
        pytest.param("submit", _exits_when_traced, marks=pytest.mark.soak),
        pytest.param("call", _exits_when_run, marks=pytest.mark.soak),
        ("submit", _exits_when_run),
    ],
)
def test_a_function_that_ends_the_worker(
    start_live: StartLive, function: Callable[[Any], Any], how: str
) -> None:
    """It is repeated once and no more; the error says so, and others are answered."""
    server = start_live()
    with connect(server.unix) as client:
        deadly = client.persistent_call(function)
        with pytest.raises(errors.WorkerLost, match="_exits_when") as caught:
            _ = deadly(1.0) if how == "call" else deadly.submit(1.0).result()
        assert "JAXD_INLINE=1" in advice(caught.value)
        with connect(server.unix) as other:
            assert float(other.persistent_call(lambda x: x + 1)(1.0)) == 2.0
            assert other.statistics().epoch == 3
    lines = server.wait_for("worker_exited", count=2)
    assert [line["exit_code"] for line in lines if line["event"] == "worker_exited"] == [7, 7]


# servers ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(stop_at, marks=pytest.mark.soak), stop_when_run])
def test_a_signal_lets_running_calls_finish(
    start_live: StartLive, runtime: Path, make: Callable[[str], Callable[[Any], Any]]
) -> None:
    """New ones are refused with a typed error, and the server ends well."""
    server, gate = start_live(), Gate(runtime / "gate")
    with connect(server.unix) as client:
        quick = client.persistent_call(lambda x: x * 2)
        quick(1.0)
        running = client.persistent_call(make(gate.path)).submit(np.float32(-1))
        with gate.reached():
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
            refused: list[errors.ServerDraining] = []

            def is_refused() -> bool:
                try:
                    quick(1.0)
                except errors.ServerDraining as error:
                    refused.append(error)
                return bool(refused)

            until(is_refused)
            assert not running.done()
        assert float(running.result()) == 0.0
    assert "same address" in advice(refused[0])
    assert server.process.wait() == 0
    assert not os.path.exists(Address.parse(server.unix).path)


@pytest.mark.soak
def test_calls_that_wait_their_turn_when_the_server_stops(
    start_live: StartLive, runtime: Path
) -> None:
    """Those that were sent but not begun are refused, none is left without an answer."""
    server, gate = start_live("--builds", "1", "--threads", "1"), Gate(runtime / "gate")
    with connect(server.unix) as client:
        stopping = client.persistent_call(stop_when_run(gate.path))
        assert float(stopping(np.float32(1))) == 2.0
        futures = [
            stopping.submit(np.float32(-1)),
            *(stopping.submit(np.float32(i)) for i in range(9)),
        ]
        with gate.reached():
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
        assert float(futures[0].result()) == 0.0
        for i, future in enumerate(futures[1:]):
            error = future.exception()
            assert isinstance(error, errors.JaxdError) or float(future.result()) == i + 1
    assert server.process.wait() == 0
