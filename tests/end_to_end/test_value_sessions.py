"""Values live as long as their process, and a little longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxd import connect, wait
from jaxd.errors import ValuesLost
from tests.live_server import LiveServer, live_server
from tests.server.staging import until

StartLive = Callable[..., LiveServer]

HOLD = """
    import sys
    import numpy as np
    import jaxd
    from jaxd import persistent_call

    @persistent_call(donate_argnums=0)
    def step(state):
        return {name: value + 1 for name, value in state.items()}

    state = {"w": np.zeros(100_000, np.float32), "n": np.int32(0)}
    for _ in range(10):
        state = step(state)
    kept = jaxd.put(np.ones(50_000, np.float32))
    jaxd.put(kept, name="outlives")
    jaxd.wait(state)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def status(live: LiveServer) -> dict[str, Any]:
    """What `jaxd status --json` says of the worker."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxd.cli", "status", "--json"],
        env=live.environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(live: LiveServer) -> tuple[int, int, int]:
    """Values, their bytes and sessions."""
    with connect(live.unix) as client:
        said = client.caller.session.ask("statistics")
        return said["values"], said["value_bytes"], said["sessions"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """For those that leave it empty."""
    with live_server() as server:
        yield server


@pytest.fixture
def unused(server: LiveServer) -> LiveServer:
    """One that holds no value."""
    until(lambda: counts(server)[:2] == (0, 0))
    return server


@pytest.mark.slow
def test_a_killed_process_leaves_only_what_has_a_name(start_live: StartLive) -> None:
    """When its grace is over, and not before; the status says so."""
    live = start_live("--session-grace-s", "1")
    with connect(live.unix) as client:
        holder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HOLD)],
            env=live.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            until(lambda: '"values": 3,' in json.dumps(status(live)))  # as of its last beat
            said = client.caller.session.ask("statistics")
            assert (said["values"], said["value_bytes"]) == (3, 400_000 + 4 + 200_000)
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        until(lambda: client.caller.session.ask("statistics")["values"] == 1)
        assert client.caller.session.ask("statistics")["value_bytes"] == 200_000
        assert float(client.named("outlives")[3]) == 1.0


@pytest.mark.slow
def test_a_lost_connection_costs_nothing(start_live: StartLive) -> None:
    """The next one finds the values, calls go on in their order, and none runs twice."""
    live = start_live()
    with connect(live.unix) as client:

        @client.persistent_call(donate_argnums=0)
        def step(state: Any, batch: Any) -> Any:
            return {"w": state["w"] + batch.sum(), "n": state["n"] + 1}

        state: Any = {"w": np.zeros(50_000, np.float32), "n": np.int32(0)}
        for turn in range(30):
            state = step(state, np.ones(4, np.float32))
            if turn % 7 == 3:
                client.caller.session.connection()._channel.stream.sock.shutdown(2)
        assert int(state["n"]) == 30
        assert float(state["w"][7]) == 120.0
        until(lambda: client.statistics().values == 2)


@pytest.mark.slow
def test_who_stays_away_for_too_long_is_told(start_live: StartLive) -> None:
    """The values are gone, and the next call says why and what to do."""
    live = start_live("--session-grace-s", "0")
    with connect(live.unix) as client, connect(live.unix) as other:
        held = client.put(np.ones(50_000, np.float32))
        client.caller.session.connection()._channel.stream.sock.shutdown(2)
        until(lambda: other.caller.session.ask("statistics")["values"] == 0)
        with pytest.raises(ValuesLost, match="--session-grace-s"):
            held.fetch()
        assert float(client.put(np.ones(3))[0]) == 1.0


def test_handles_that_go_free_their_memory(unused: LiveServer) -> None:
    """With the next call, or without one after a moment; what is deleted, at once."""
    with connect(unused.unix) as client:
        held = [client.put(np.ones(50_000, np.float32)) for _ in range(5)]
        assert counts(unused)[:2] == (5, 1_000_000)
        held.pop().delete()
        del held[:2]
        until(lambda: counts(unused)[:2] == (2, 400_000))
        held.clear()
        until(lambda: counts(unused)[:2] == (0, 0))


def test_a_loop_leaves_nothing_behind(unused: LiveServer) -> None:
    """However many steps: the last state is all that there is."""
    with connect(unused.unix) as client:

        @client.persistent_call
        def step(state: Any) -> Any:
            return [leaf + 1 for leaf in state], state[0].sum()

        state: Any = [np.zeros(30_000, np.float32), np.float32(0)]
        for _ in range(200):
            state, loss = step(state)
        wait((state, loss))
        until(lambda: counts(unused)[0] == 3)
        assert float(loss) == 199 * 30_000
        worker = unused.worker_pid()
        assert len(os.listdir(f"/proc/{worker}/fd")) < 200
