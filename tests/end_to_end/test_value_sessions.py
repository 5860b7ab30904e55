"""Values live as long as their process, and a little longer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from jaxd import connect
from tests.live_server import LiveServer
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
