"""Clients that are killed or stopped, at each stage of a call."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import jaxd
from jaxd import connect
from jaxd.connection import local_server
from jaxd.errors import NoServer
from tests.end_to_end.gates import Gate, stop_at, stop_when_run
from tests.faults.others import unharmed
from tests.live_server import LiveServer, live_server

pytestmark = pytest.mark.faults

StartLive = Callable[..., LiveServer]

ROOT: Final = str(Path(__file__).resolve().parents[2])

CALLS: Final = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
sys.path.insert(0, sys.argv[1])
import numpy as np
from jaxd import connect
from tests.end_to_end.gates import stop_at, stop_when_run
client = connect()
stage, gate = sys.argv[2:4]
if stage in ("trace", "run"):
    function = client.persistent_call({"trace": stop_at, "run": stop_when_run}[stage](gate))
    print("calls", flush=True)
    function(np.float32(-1))
else:
    large = np.ones(1 << 24, np.float32)
    send = client.persistent_call(lambda x: x.sum())
    fetch = client.persistent_call(lambda x: x + np.zeros(1 << 24, np.float32), results="numpy")
    call = (lambda: send(large)) if stage == "receive" else (lambda: fetch(np.float32(1)))
    call()
    print("calls", flush=True)
    while True:
        call()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One for all rows: each leaves it as it was. Sessions without a client end at once."""
    with live_server("--session-grace-s", "0", "--builds", "4") as server:
        yield server


@contextmanager
def calling(server: LiveServer, stage: str, gate: Gate) -> Iterator[subprocess.Popen[str]]:
    """A client process whose call is at that stage."""
    with subprocess.Popen(
        [sys.executable, "-c", CALLS, ROOT, stage, gate.path],
        env=server.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "calls\n"
        try:
            if stage in ("trace", "run"):
                with gate.reached():
                    yield process
            else:
                yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda one: one.name)
@pytest.mark.parametrize("stage", ["receive", "trace", "run", "reply"])
def test_a_client_ends_in_its_call(
    server: LiveServer, tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    """The server forgets it: no connection, array or file of it is left."""
    with unharmed(server, 1), calling(server, stage, Gate(tmp_path / "gate")) as process:
        process.send_signal(number)
        process.wait(30)


@pytest.mark.parametrize("seed", range(3))
def test_clients_are_killed_at_random_moments(
    server: LiveServer, tmp_path: Path, seed: int
) -> None:
    """Of which each has the same chance; the seed is the row's."""
    chance = random.Random(seed)
    with unharmed(server, 1):
        for _ in range(3):
            stage = chance.choice(["receive", "reply"])
            gate = Gate(tmp_path / f"gate{chance.random()}")
            with calling(server, stage, gate) as process:
                try:
                    process.wait(chance.uniform(0.0, 0.3))
                except subprocess.TimeoutExpired:
                    process.kill()


@pytest.mark.parametrize("stage", ["receive", "reply"])
def test_a_client_is_stopped_for_a_while(server: LiveServer, tmp_path: Path, stage: str) -> None:
    """It keeps nobody else waiting, though it neither sends on nor reads; then it goes on."""
    with (
        calling(server, stage, Gate(tmp_path / "gate")) as process,
        unharmed(server, 2),
    ):
        process.send_signal(signal.SIGSTOP)
        with unharmed(server, 2):
            pass
        process.send_signal(signal.SIGCONT)
        assert process.poll() is None


def test_a_call_is_cancelled_that_was_given_a_state(start_live: StartLive) -> None:
    """Once it has begun that is refused, and its result is there; before, the state is."""
    live = start_live()
    with connect(live.unix) as client:
        gate = Gate(live.directory / "given")
        step = client.persistent_call(stop_when_run(gate.path), donate_argnums=0)
        jaxd.wait(step(client.put(np.float32(1))))
        future = step.submit(client.put(np.float32(-1)))
        with gate.reached():
            assert not future.cancel()
            assert not future.done()
        assert float(future.result()) == 0.0

        gate, state = Gate(live.directory / "built"), client.put(np.float32(2))
        future = client.persistent_call(stop_at(gate.path), donate_argnums=0).submit(state)
        with gate.reached():
            assert future.cancel()
        gate.let_leave(client)
        assert float(state) == 2.0


HOLDS: Final = """
import signal
from jaxd.connection.local_server import _start_lock
from jaxd_protocol.network.local_server import LocalServerFiles, make_private_directory
files = LocalServerFiles.of_this_environment()
make_private_directory(files.directory)
with _start_lock(files, None):
    print("holds", flush=True)
    signal.pause()
"""


def test_a_client_is_stopped_while_it_starts_the_local_server(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it does so for a minute (here a second), and is told which process it is."""
    monkeypatch.setattr(local_server, "_START_TIMEOUT_S", 1.0)
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(NoServer, match=f"process {process.pid} has been starting"):
            connect().info()
        process.kill()
