"""Clients that come, go and are killed for a long time leave nothing behind on the server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import pytest

from jaxd import Client, connect
from tests.end_to_end.gates import wait_until
from tests.live_server import LiveServer

StartLive = Callable[..., LiveServer]

DURATION_S: Final = float(os.environ.get("JAXD_SOAK_S", "600"))
CLIENTS: Final = 4
SAMPLE_S: Final = 10.0
WARM_UP_S: Final = 30.0
"""Until threads and their memory are there that four clients need."""

MIB: Final = 1 << 20
_PATIENCE_S: Final = 60.0
_CODES: Final = {
    "left": (0,),
    "killed": (-signal.SIGKILL,),
    "interrupted": (-signal.SIGINT, 130),
}
"""How a process may end."""

CLIENT: Final = """
import itertools, os, sys
import numpy as np
import jaxd

def unraisable(what):  # Python itself swallows an interrupt that comes in a finalizer
    if what.exc_type is KeyboardInterrupt:
        os._exit(130)
    sys.__unraisablehook__(what)

sys.unraisablehook = unraisable
chance = np.random.default_rng(int(sys.argv[1]))

@jaxd.persistent_call(donate_argnums=0)
def step(state, x):
    state = {"w": state["w"] + x.mean(), "n": state["n"] + 1}
    return state, state["w"].sum()

@jaxd.persistent_call
def double(x):
    return x * 2

@jaxd.persistent_call
def fail(x):
    return x.no_such_attribute

state = jaxd.put({"w": np.zeros((512, 512), np.float32), "n": np.int32(0)})
print("began", flush=True)
for turn in itertools.count():
    x = np.full(int(chance.choice([64, 1 << 16, 1 << 18, 1 << 20])), turn, np.float32)
    for _ in range(5):
        state, total = step(state, x[:64])
    held = [jaxd.put(x), double(x), double(double(x))]
    assert np.asarray(held[2])[-1] == turn * 4
    if hasattr(held[1], "fetch"):
        assert held[1].fetch(copy=False)[0] == turn * 2
    double.submit(x).result()
    name = f"soak-{int(chance.integers(6))}"
    jaxd.put({"x": x}, name=name, ttl_s=5.0)
    assert jaxd.named(name)["x"].shape
    shared = jaxd.empty(1 << 17, np.float32)
    shared[:] = turn
    assert np.asarray(double(shared))[0] == turn * 2
    try:
        fail(held[0])
    except AttributeError:
        pass
    assert float(total) >= 0 and int(state["n"]) == 5 * turn + 5
    if turn == int(sys.argv[2]):
        break
"""


class Size(NamedTuple):
    """What the server takes and holds, now."""

    descriptors: int
    maps: int
    resident: int
    values: int
    value_bytes: int
    sessions: int
    connections: int

    @classmethod
    def of(cls, pid: int, client: Client) -> Size:
        """That of a worker, of which the client is one."""
        folder, report = Path(f"/proc/{pid}"), client.caller.ask("statistics")
        return cls(
            len(os.listdir(folder / "fd")),
            (folder / "maps").read_bytes().count(b"\n"),
            int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            *(int(report[name]) for name in cls._fields[3:]),
        )

    def __str__(self) -> str:
        return (
            f"{self.descriptors:4} descriptors {self.maps:5} maps {self.resident / MIB:6.0f} MiB "
            f"{self.values:5} values {self.value_bytes / MIB:7.1f} MiB of values "
            f"{self.sessions:3} sessions {self.connections:3} connections"
        )


class Visitors:
    """Client processes, one after another, that end in turn or are ended.

    Args:
        server: whose clients they are.
        seed: decides how long each one lives, and how it ends.

    Attributes:
        ended: how many came to each kind of end.
        complaints: what those said that had not to end badly.
    """

    def __init__(self, server: LiveServer, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self.ended: dict[str, int] = {"left": 0, "killed": 0, "interrupted": 0}
        self.complaints: list[str] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            self.visit(self._chance.choice(list(self.ended)))

    def visit(self, end: str) -> None:
        """One client, until its end of that kind."""
        turns = self._chance.randrange(20) if end == "left" else -1
        with subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-c",
                CLIENT,
                str(self._chance.randrange(1 << 30)),
                str(turns),
            ],
            env=self._server.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if end != "left":
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self._chance.uniform(0, 5))
                process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGINT)
            try:
                _, said = process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:  # it hangs: where?
                process.send_signal(signal.SIGABRT)
                _, said = process.communicate()
        self.ended[end] += 1
        if process.returncode not in _CODES[end]:
            self.complaints.append(f"{end}, {process.returncode}: {said}")

    def stop(self) -> None:
        """Waits for the last one."""
        self._stop.set()
        self._thread.join()


def settled(server: LiveServer, client: Client) -> Size:
    """The size once nobody else is there and all that they left is forgotten."""

    def is_alone() -> bool:
        report: dict[str, Any] = client.caller.ask("statistics")
        return (report["sessions"], report["connections"], report["values"]) == (1, 1, 0)

    wait_until(is_alone)
    return Size.of(server.worker_pid(), client)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(DURATION_S + 300)
def test_clients_that_come_go_and_are_killed_leave_nothing(
    start_live: StartLive, capsys: pytest.CaptureFixture[str]
) -> None:
    """Descriptors, maps, values and sessions are as before, memory nearly so; watch with -s."""
    server = start_live("--cache-dir", "none", "--session-grace-s", "2")
    pid = server.worker_pid()
    with connect(server.unix) as client:

        def watch(duration_s: float) -> tuple[list[Visitors], list[int]]:
            """Four clients at a time for so long, and the memory that was taken meanwhile."""
            visitors, resident = [Visitors(server, seed) for seed in range(CLIENTS)], []
            end = time.monotonic() + duration_s
            while (left := end - time.monotonic()) > 0:
                threading.Event().wait(min(SAMPLE_S, left))
                size = Size.of(pid, client)
                resident.append(size.resident)
                tell(f"{duration_s + time.monotonic() - end:5.0f} s  {size}")
            for one in visitors:
                one.stop()
            return visitors, resident

        def tell(text: str) -> None:
            with capsys.disabled():
                print(f"\n{text}", end="", flush=True)

        watch(WARM_UP_S)
        before = settled(server, client)
        tell(f"before   {before}")
        visitors, resident = watch(DURATION_S)
        after = settled(server, client)
        tell(f"after    {after}")
    ended = {kind: sum(one.ended[kind] for one in visitors) for kind in visitors[0].ended}
    tell(f"clients  {ended}\n")
    complaints = [text for one in visitors for text in one.complaints]
    assert not complaints, complaints[0]
    assert after.descriptors <= before.descriptors + 2
    assert after.maps <= before.maps + 40
    third = -(-len(resident) // 3)
    assert median(resident[-third:]) <= median(resident[:third]) + 64 * MIB
    assert after.resident <= before.resident + 150 * MIB  # freed, but not given back
