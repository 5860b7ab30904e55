"""Values and calls on them when something ends: a connection, a session, a worker, a client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.errors import Cancelled, ValuesDied, ValuesLost, WorkerLost
from tests.end_to_end.gates import Gate, advice, in_thread
from tests.end_to_end.steps import kill
from tests.live_server import TOKEN, LiveServer
from tests.server.in_process import InProcessServer
from tests.server.staging import until

LARGE: Final = 1 << 15
"""Numbers of four bytes that are too many to come home by themselves."""


@pytest.fixture
def client(in_process_server: InProcessServer) -> Client:
    """A client of it."""
    return in_process_server.client()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function stops while it runs."""
    return Gate(tmp_path / "gate")


def step_at(gate: Gate) -> Callable[[Any, Any], Any]:
    """Adds numbers to a state; waits at the gate while it runs when the first is negative."""

    def pass_gate(x: Any) -> Any:
        if np.ravel(x)[0] < 0:
            Path(gate.path).read_bytes()
        return np.asarray(x)

    def step(state: Any, x: Any) -> Any:
        x = jax.pure_callback(pass_gate, jax.typeof(x), x)
        return state + x.sum(), state[0]

    return step


def state_on(client: Client) -> Any:
    """Zeros on the server."""
    return client.put(np.zeros(LARGE, np.float32))


def cut(client: Client) -> None:
    """Ends the connection as a network does, without the client's knowledge."""
    client.caller.session.connection()._channel.stream.sock.shutdown(2)


def calls(in_process_server: InProcessServer) -> int:
    """How many were run to their end."""
    return int(in_process_server.counters.snapshot()["calls"])


# a connection -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, LARGE, 1 << 17])
def test_nothing_is_lost_and_nothing_runs_twice(
    client: Client, in_process_server: InProcessServer, gate: Gate, size: int
) -> None:
    """Though the batches were overwritten at once: inside of the message, beside it, in blocks."""
    step = client.persistent_call(step_at(gate), donate_argnums=0)
    batch = np.zeros(size, np.float32)
    state, _ = step(state_on(client), batch)
    state, _ = step(state, batch)
    jaxd.wait(state)
    before = calls(in_process_server)
    for value in (-1, 2, 3, 4):
        batch[:] = value
        state, seen = step(state, batch)
    batch[:] = 100
    with gate.reached():
        cut(client)
    np.testing.assert_array_equal(np.asarray(state), np.full(LARGE, 8.0 * size))
    assert float(seen) == 4.0 * size
    until(lambda: calls(in_process_server) == before + 4)


def test_what_was_lost_is_sent_again_before_what_comes_next(client: Client, gate: Gate) -> None:
    """Also when somebody else was the first to notice the loss."""
    step = client.persistent_call(step_at(gate))
    other = client.persistent_call(lambda x: x + 1)
    other(1.0)
    x = np.ones(1, np.float32)
    state, _ = step(state_on(client), x)
    state, _ = step(state, x)
    stuck, _ = step(state, -x)
    with gate.reached():
        cut(client)
        after = in_thread(other, 1.0)
        assert float(after.result(30)) == 2.0
        state, _ = step(stuck, x)
    np.testing.assert_array_equal(np.asarray(state), np.full(LARGE, 2))


def test_submitted_calls_are_sent_again_without_anybody_waiting(
    client: Client, in_process_server: InProcessServer, gate: Gate
) -> None:
    """Their futures are done in the end."""
    step = client.persistent_call(step_at(gate))
    x = np.ones(1, np.float32)
    state, _ = step(state_on(client), x)
    futures = [step.submit(state, value) for value in (-x, x)]
    with gate.reached():
        cut(client)
        until(
            lambda: (
                not in_process_server.parts.status.now()["connections"]
                or client.caller.session.connected
            )
        )
    until(lambda: all(future.done() for future in futures))
    assert [float(future.result()[0][0]) for future in futures] == [0.0, 2.0]


def test_what_is_let_go_without_a_connection_is_told_later(
    client: Client, in_process_server: InProcessServer
) -> None:
    """With the next call, over the next connection."""
    step = client.persistent_call(lambda x: x + 1)
    state: Any = state_on(client)
    arrays = [state_on(client) for _ in range(10)]
    state = step(step(state))
    jaxd.wait(state)
    cut(client)
    client.caller.session.connection().check()
    assert not client.caller.session.connected
    arrays.clear()
    until(lambda: not client.caller.session.store.release_queue._is_woken)  # type: ignore[union-attr]
    state = step(state)
    jaxd.wait(state)
    until(lambda: len(in_process_server.parts._worker_context.values) == 1)


@pytest.mark.soak
def test_large_batches_and_large_replies_do_not_wait_for_each_other(live: LiveServer) -> None:
    """The client takes replies while it is stuck in sending."""
    with connect(live.tcp, token=TOKEN) as client:

        def step(state: Any, batch: Any) -> Any:
            return state + batch[0], [state[:16000] + i for i in range(100)]

        call = client.persistent_call(step)
        state = state_on(client)
        batch = np.ones(4 << 20, np.float32)
        for _ in range(12):
            state, small = call(state, batch)
        np.testing.assert_array_equal(np.asarray(state), np.full(LARGE, 12))
        np.testing.assert_array_equal(np.asarray(small[99])[:3], np.full(3, 110))


def test_closing_a_client_ends_its_calls(client: Client, gate: Gate) -> None:
    """They say so; the client can be used again, and other values are where they were."""
    step = client.persistent_call(step_at(gate))
    x = np.ones(1, np.float32)
    state, _ = step(state_on(client), x)
    state, _ = step(state, x)
    jaxd.wait(state)
    stuck, _ = step(state, -x)
    with gate.reached():
        client.close()
        with pytest.raises(Cancelled, match="closed"):
            np.asarray(stuck)
    np.testing.assert_array_equal(np.asarray(state), np.full(LARGE, 2))


# a session ----------------------------------------------------------------------------------------


def assert_lost(client: Client, arrays: list[Any], kind: type[ValuesLost] = ValuesLost) -> None:
    """Whatever is done with these arrays, the error says what became of them and what to do."""
    double = client.persistent_call(lambda x: x * 2)
    for array in arrays:
        uses: list[Callable[[], Any]] = [
            lambda x=array: np.asarray(x),  # type: ignore[misc]
            lambda x=array: double(x),  # type: ignore[misc]
            lambda x=array: x[:3],  # type: ignore[misc]
        ]
        for use in uses:
            with pytest.raises(ValuesLost) as caught:
                use()
            assert type(caught.value) is kind
            assert "checkpoint" in advice(caught.value)
    np.testing.assert_array_equal(np.asarray(double(np.ones(LARGE))), np.full(LARGE, 2))
    np.testing.assert_array_equal(np.asarray(double(client.put(np.ones(3)))), np.full(3, 2))


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_session_that_was_given_up(gate: Gate) -> None:
    """Its values are gone; what is made afterwards is not."""
    in_process_server = InProcessServer(session_grace_s=0.0)
    client = in_process_server.client()
    array = state_on(client)
    cut(client)
    until(lambda: not in_process_server.parts.status.now()["connections"])
    until(lambda: not len(in_process_server.parts._worker_context.values))
    assert_lost(client, [array])
    in_process_server.close()


@pytest.mark.slow
@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_worker_that_was_killed(start_live: Callable[..., LiveServer], gate: Gate) -> None:
    """Arrays that were there and results of calls on their way are lost, and nothing hangs."""
    server = start_live()
    with connect(server.unix) as client:
        step = client.persistent_call(step_at(gate))
        x = np.ones(1, np.float32)
        state, _ = step(state_on(client), x)
        state, _ = step(state, x)
        stuck, seen = step(state, -x)
        with gate.reached():
            kill(server)
        assert_lost(client, [state, stuck, seen], ValuesDied)
        double = client.persistent_call(lambda x: x * 2)
        for array in (state, stuck):  # one that was there, and one that was on its way
            with pytest.raises(WorkerLost, match=r"needs 1 of them: float32\[32768\]\. Make"):
                double(array)


FORKING = """
import os, threading, json
import numpy as np
from jaxd import connect, errors
client = connect()
step = client.persistent_call(lambda x: x + 1)
array = client.put(np.zeros(1 << 15, np.float32))
array = step(step(array))
done = threading.Event()

def keep_calling():
    other = client.put(np.zeros(1 << 15, np.float32))
    while not done.is_set():
        other = step(other)

thread = threading.Thread(target=keep_calling)
thread.start()
facts = []
for _ in range(5):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = ["nothing", ""]
        try:
            np.asarray(array)
        except errors.ValuesLost as error:
            said = ["lost", str(error)]
        said.append(float(np.asarray(step(np.float32(1)))))
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        facts.append(json.loads(file.read()))
    os.waitpid(child, 0)
done.set()
thread.join()
print(json.dumps([facts, float(array[0])]))
"""


def test_the_child_of_a_fork(live: LiveServer) -> None:
    """It is told that the arrays are its parent's, which keeps them."""
    done = live.run(FORKING)
    assert done.returncode == 0, done.stderr
    children, value = json.loads(done.stdout)
    assert value == 2.0
    for said, text, result in children:
        assert (said, result) == ("lost", 2.0)
        assert "forked" in text


ENDING = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import numpy as np
from tests.end_to_end.gates import Gate
from tests.end_to_end.test_reconnect import step_at, state_on
from jaxd import connect
client = connect()
step = client.persistent_call(step_at(type("Gate", (), {"path": sys.argv[1]})))
x = np.ones(1, np.float32)
state, _ = step(state_on(client), x)
state, _ = step(state, x)
state, _ = step(state, -x)
for _ in range(4):
    state, _ = step(state, x)
futures = [step.submit(state, x)]
print("ends", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_ends_with_calls_on_their_way(live: LiveServer, gate: Gate) -> None:
    """It just ends, though its first call has not."""
    root = str(Path(__file__).resolve().parents[2])
    done = live.run(ENDING, gate.path, root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    with gate.reached():
        pass
