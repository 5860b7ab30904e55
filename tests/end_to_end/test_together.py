"""Many who want the same thing at once: it is made once, and nobody is left without."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from tests.end_to_end.counting import BUILT, LOADED, costs, records, warnings_of
from tests.end_to_end.gates import Gate, in_thread, stop_at
from tests.end_to_end.steps import X
from tests.live_server import LiveServer
from tests.server.staging import until

StartLive = Callable[..., LiveServer]

# Many programs of one function are what is wanted here.
pytestmark = [
    pytest.mark.counts_builds,
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]

FORKS = """
import os, traceback
from jaxd import persistent_call

@persistent_call
def step(x):
    import jax.numpy as jnp

    return jnp.tanh(x) * 2 + 16

ready, start = os.pipe()
children = []
for number in range(16):
    child = os.fork()
    if child == 0:
        try:
            os.close(start)
            os.read(ready, 1)
            os._exit(abs(float(step(0.0)) - 16.0) > 1e-6)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    children.append(child)
os.close(start)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def running(client: Client, count: int) -> Callable[[], bool]:
    """Whether that many calls are on the server now."""
    return lambda: client.caller.session.ask("statistics")["running_calls"] == count


@pytest.mark.slow
def test_sixteen_processes_build_once(live: LiveServer, client: Client) -> None:
    """One traces and compiles, fifteen wait for it."""
    with costs(client) as spent:
        done = live.run(FORKS)
    assert (done.stderr, json.loads(done.stdout)) == ("", [0] * 16)
    assert spent == {**BUILT, "executable_hits": 15}


def test_sixteen_connections_build_once(live: LiveServer, client: Client) -> None:
    """All of them are waiting when the one is traced."""
    gates = Gate(live.directory / "sixteen")
    path = gates.path

    def step(x: Any) -> Any:
        Path(path).read_bytes()
        return x * 3 - 1616  # of no other test: its program is not shared

    with ExitStack() as stack, costs(client) as spent:
        clients = [stack.enter_context(connect(live.unix)) for _ in range(16)]
        calls = [in_thread(one.persistent_call(step), X) for one in clients]
        with gates.reached():
            until(running(client, 16))
        for call in calls:
            np.testing.assert_array_equal(call.result(), X * 3 - 1616)
    assert spent == {**BUILT, "executable_hits": 15}


@pytest.mark.slow
def test_a_small_function_passes_one_that_is_traced_for_long(
    start_live: Callable[..., LiveServer],
) -> None:
    """Where one is built at a time: it does not wait until the other is ready."""
    server = start_live("--builds", "1", "--build-in", "worker")
    gate = Gate(server.directory / "long")
    with connect(server.unix) as one, connect(server.unix) as other:
        long = in_thread(one.persistent_call(stop_at(gate.path)), X)
        with gate.reached():
            small = other.persistent_call(lambda x: x * 3 + 1)
            np.testing.assert_array_equal(small(X), X * 3 + 1)
            assert not long.done()
        np.testing.assert_array_equal(long.result(), X + 1)


@pytest.mark.slow
def test_sixteen_signatures_of_one_function(client: Client) -> None:
    """Which keep each other waiting only for room."""
    step = client.persistent_call(lambda x: x.sum() * 31)
    with costs(client) as spent:
        calls = [in_thread(step, np.ones(count, np.float32)) for count in range(1, 17)]
        results = [float(call.result()) for call in calls]
    assert results == [31.0 * count for count in range(1, 17)]
    assert spent == {name: 16 * count for name, count in BUILT.items()}


@pytest.mark.slow
def test_sixteen_functions_that_are_one_program(client: Client) -> None:
    """Each is traced; one compiles for all."""

    def make(number: int) -> Callable[[Any], Any]:
        return lambda x: (number, x * 37)[1]

    with costs(client) as spent:
        calls = [in_thread(client.persistent_call(make(number)), X) for number in range(16)]
        for call in calls:
            np.testing.assert_array_equal(call.result(), X * 37)
    assert spent == {"traces": 16, "lowers": 16, "compiles": 1, "programs_shared": 15}


def test_a_build_that_fails_fails_for_all_who_wait(live: LiveServer, client: Client) -> None:
    """With the same error; the next call tries again, and is answered."""
    gate, marker = Gate(live.directory / "failing"), live.directory / "marker"
    path, mended = gate.path, str(marker)

    def fails(x: Any) -> Any:
        if not Path(mended).exists():
            Path(path).read_bytes()
            raise LookupError(f"number {np.random.default_rng().random()}")
        return x + 8

    queued = threading.Semaphore(0)

    def note(connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        if kind == "stage" and content["stage"] == "queued":
            queued.release()

    with ExitStack() as stack:
        clients = [stack.enter_context(connect(live.unix)) for _ in range(8)]
        for one in clients:
            one.caller.session.progress().event = note  # type: ignore[method-assign]
        with costs(client) as spent:
            calls = [in_thread(one.persistent_call(fails), X) for one in clients]
            with gate.reached():
                assert all(queued.acquire(timeout=30) for _ in clients)
            errors = {repr(call.exception()) for call in calls}
        assert len(errors) == 1
        assert errors.pop().startswith("LookupError('number ")
        assert spent == {"traces": 1}
        marker.touch()
        with costs(client) as spent:
            np.testing.assert_array_equal(clients[0].persistent_call(fails)(X), X + 8)
        assert spent == BUILT


WAITS = """
import sys
from pathlib import Path
from jaxd import persistent_call

PATH, FACTOR = sys.argv[1], float(sys.argv[2])

@persistent_call
def step(x):
    Path(PATH).read_bytes()
    return x * FACTOR

print(float(step(2.0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the builder", "a waiter"])
def test_a_client_that_is_killed_does_not_cancel_the_build(
    live: LiveServer, client: Client, who: str
) -> None:
    """The others get what they wait for, built once."""
    factor = len(who) + 0.0625  # no program of another test
    gate = Gate(live.directory / f"killed-{factor}")

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", WAITS, gate.path, str(factor)],
            env=live.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with costs(client) as spent:
        first = start()
        with gate.reached():
            others = [start(), start()]
            until(running(client, 3))
            killed = first if who == "the builder" else others[0]
            before = client.caller.session.ask("statistics")["connections"]
            killed.kill()
            until(lambda: client.caller.session.ask("statistics")["connections"] < before)
        for process in (first, *others):
            out, error = process.communicate(timeout=50)
            if process is not killed:
                assert (out, error) == (f"{2 * factor}\n", "")
    assert spent.pop("executable_hits", 0) <= 2
    assert spent == BUILT


def make(factor: float) -> Callable[[Any], Any]:
    """A function that is another one for each number."""
    return lambda x: x * factor + 1


@pytest.mark.soak
def test_two_servers_on_one_folder(start_live: StartLive, runtime: Path) -> None:
    """They build the same and other things at once, find each other's, and both start anew."""
    servers = [start_live(name=name) for name in ("one", "other")]
    ready = threading.Barrier(2)

    def build(server: LiveServer, own: range) -> dict[str, int]:
        with connect(server.unix) as client, costs(client) as spent:
            ready.wait()
            for factor in (*range(100, 110), *own):
                step = client.persistent_call(make(factor))
                np.testing.assert_array_equal(step(X), make(factor)(X))
            step.warm(X)
        return spent

    calls = [
        in_thread(build, server, own)
        for server, own in zip(servers, (range(5), range(5, 10)), strict=True)
    ]
    spent = [call.result() for call in calls]
    ways = ("compiles", "programs_shared", "executable_loads")  # the other one may be faster
    assert [sum(one.get(way, 0) for way in ways) for one in spent] == [15, 15]
    assert 20 <= sum(one["compiles"] for one in spent) <= 30
    with connect(servers[0].unix) as client, costs(client) as cost:
        client.persistent_call(make(7))(X)  # the other one's
    assert cost == LOADED
    assert [server.close() for server in servers] == [0, 0]
    assert (len(records(runtime, "calls")), len(records(runtime, "programs"))) == (20, 20)
    for server in [start_live(name=name) for name in ("one", "other")]:
        with connect(server.unix) as client, costs(client) as cost:
            for factor in (*range(100, 110), *range(10)):
                step = client.persistent_call(make(factor))
                np.testing.assert_array_equal(step(X), make(factor)(X))
        assert cost == {"executable_loads": 20}
        assert server.close() == 0
        assert warnings_of(server) == []
