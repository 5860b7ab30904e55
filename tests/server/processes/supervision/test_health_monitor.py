from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.health_monitor import (
    calls_of,
    others_with_values,
    process_state,
    reason_to_recycle,
)
from jaxd_server.runtime.flight_recorder import FlightRecorder
from tests.server.staging import until


def worker(*principals: str, owners: tuple[str, ...] = (), **snapshot: Any) -> Any:
    """One that says nothing, and has written down calls of these."""
    box = FlightRecorder.create()
    box.own(owners)
    for who in principals:
        place = box.begin(b"k" * 16, who, is_repeated=False, is_alone=False)
        box.identify(place, b"f" * 16, f"step of {who}")
    return SimpleNamespace(recorder=box, snapshot=snapshot, silent_s=5.0)


def test_the_calls_of_a_worker_that_says_nothing() -> None:
    """As it has written them down; else those that it told of last, which are older now."""
    (call,) = calls_of(worker("uid:1", running=[{"function": "old", "seconds": 1.0}]))
    assert call["function"] == "step of uid:1"
    (call,) = calls_of(worker(running=[{"function": "warm", "seconds": 1.0}]))
    assert call == {"function": "warm", "seconds": 6.0}
    nonsense: list[Any] = [[], 7, [1], [{}], [{"function": "f", "seconds": 10**400}]]
    assert [calls_of(worker(running=running)) for running in nonsense] == [[]] * 5


@pytest.mark.parametrize(
    ("callers", "owners", "harmed"),
    [
        ((), (), set()),
        (("a",), ("a",), set()),
        (("a", "a"), ("a",), set()),
        (("a",), ("a", "b"), {"b"}),
        (("a", "b"), ("a",), {"a"}),  # perhaps it hangs in the other's call
        ((), ("a",), {"a"}),
    ],
)
def test_whose_arrays_would_be_lost(
    callers: tuple[str, ...], owners: tuple[str, ...], harmed: set[str]
) -> None:
    """Nobody's call may cost another one's arrays."""
    assert others_with_values(worker(*callers, owners=owners)) == harmed


def test_what_the_system_says_of_a_process() -> None:
    """A stopped one is told from one that works."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: process_state(process.pid) == "stopped")
        process.kill()
    assert process_state(process.pid) == "unknown"
    assert process_state(os.getpid()) == "running"


def reason(ready_s: float = 100.0, calls: int = 10, resident: int = 1000, **limits: Any) -> str:
    """Why a worker is replaced that has done that."""
    return reason_to_recycle(ServerOptions(**limits), {"calls": calls}, ready_s, resident)


def test_each_limit_is_a_reason_to_replace_a_worker() -> None:
    """When it is reached, and not one before; not size alone, as the next would be as large."""
    assert reason(1e9, 10**9, 1 << 50) == ""
    for limit, said in (
        ({"recycle_after_calls": 10}, "10 calls"),
        ({"recycle_after_s": 100.0}, "100 s old"),
        ({"recycle_above_bytes": 1000}, "MiB of memory"),
    ):
        assert said in reason(**limit)
        assert reason(99.0, 9, 999, **limit) == ""
    assert reason(59.0, recycle_above_bytes=1000) == ""
