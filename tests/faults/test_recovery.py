"""How long clients wait for the next worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from jaxd import connect
from tests.end_to_end.steps import Steps, X
from tests.live_server import LiveServer

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]

StartLive = Callable[..., LiveServer]

FUNCTIONS: Final = 50


@pytest.mark.parametrize("standby", ["with a standby", "without"])
def test_fifty_functions_after_a_kill(
    start_live: StartLive, standby: str, record_property: Callable[[str, object], None]
) -> None:
    """All 50 are answered right, from disk: nothing is traced or compiled."""
    server = start_live("--standby" if standby != "without" else "--no-standby")
    if standby != "without":
        server.wait_for("worker_standing_by")
    steps = Steps()
    with connect(server.unix) as client:
        functions = [client.persistent_call(steps.make(number)) for number in range(FUNCTIONS)]
        expected = [np.asarray(function(X)) for function in functions]
        steps.settle(client)
        os.kill(server.worker_pid(), signal.SIGKILL)
        began = time.monotonic()
        first = np.asarray(functions[7](X))
        first_s = time.monotonic() - began
        found = [np.asarray(function(X)) for function in functions]
        all_s = time.monotonic() - began
        np.testing.assert_array_equal(first, expected[7])
        np.testing.assert_array_equal(found, expected)
        seen = client.statistics()
        assert (seen.epoch, seen.traces, seen.compiles) == (2, 0, 0)
    ready = [line for line in server.lines if line["event"] == "worker_ready"][-1]
    record_property(
        "figure",
        f"from SIGKILL to the next right answer {first_s:.2f} s, to all {FUNCTIONS} {all_s:.2f} s; "
        f"the worker was ready after {ready['after_s']:.2f} s",
    )


def test_what_a_standby_takes(
    start_live: StartLive, record_property: Callable[[str, object], None]
) -> None:
    """Memory of its own of no more than 120 MiB; it has no device."""
    server = start_live("--standby")
    lines = server.wait_for("worker_standing_by")
    pid = next(line["pid"] for line in lines if line["event"] == "worker_standing_by")
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in list(file)[1:]}
    own = sizes["Private_Dirty"] + sizes["Private_Clean"]
    record_property(
        "figure", f"{sizes['Rss']} MiB resident, {own} MiB of them its own, {sizes['Pss']} MiB PSS"
    )
    assert own <= 120
