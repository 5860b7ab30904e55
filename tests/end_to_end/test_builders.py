"""Functions that are traced beside the worker: nothing differs but who is kept waiting."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import InternalError, TracedReadWarning
from jaxd_server.runtime.child_startup import process_facts
from tests.end_to_end import test_results_home
from tests.end_to_end.gates import Gate
from tests.live_server import LiveServer, live_server
from tests.server.staging import is_running, until
from tests.xla_flags import devices

# A server with a builder; tests/server/processes/test_builder.py asks a builder alone.
pytestmark = pytest.mark.slow

X = np.linspace(0, 1, 4, dtype=np.float32)

reads_its_process = pytest.mark.filterwarnings("ignore::jaxd.errors.TracedReadWarning")


def pids(server: LiveServer, event: str, count: int = 1) -> list[int]:
    """Those of the events so far, once there are so many."""
    lines = server.wait_for(event, count)
    return [int(line["pid"]) for line in lines if line["event"] == event]


def builder_pids(server: LiveServer, count: int = 1) -> list[int]:
    """Those of the builders so far: another one begins beside a build that takes long."""
    return pids(server, "builder_ready", count)


def builder_pid(server: LiveServer, count: int = 1) -> int:
    """That of the builder that was ready last."""
    return builder_pids(server, count)[-1]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One server that traces everything in its builder, but what it cannot."""
    with live_server("--build-in", "builder") as server:
        builder_pid(server)
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    """A client of it."""
    with connect(server.unix) as client:
        yield client


def counts(client: Client) -> tuple[int, int, int]:
    """Traces, lowerings and compilations so far."""
    now = client.statistics()
    return now.traces, now.lowers, now.compiles


def spent(client: Client, do: Callable[[], Any]) -> tuple[int, int, int]:
    """How many of these it took."""
    before = counts(client)
    do()
    return tuple(np.subtract(counts(client), before).tolist())


def test_a_function_is_traced_lowered_and_compiled_once(client: Client) -> None:
    """Wherever that is done."""
    step = client.persistent_call(lambda p, x: {"p": p["w"] * x, "n": x.sum()})
    assert spent(client, lambda: step({"w": X}, X)) == (1, 1, 1)
    assert spent(client, lambda: step({"w": X}, X)) == (0, 0, 0)
    assert step({"w": X}, X)["p"].tolist() == (X * X).tolist()


@reads_its_process
def test_the_function_ran_in_another_process(server: LiveServer, client: Client) -> None:
    """The builder, which the server has announced."""

    def where(x: Any) -> Any:

        return x + os.getpid()

    assert int(client.persistent_call(where)(0)) in builder_pids(server)


def test_every_kind_of_argument_makes_the_way(client: Client) -> None:
    """Numbers, statics, typed keys, 64 bits, donated ones."""
    assert client.persistent_call(lambda a, b: a * b)(1.5, 2).dtype == np.float32
    power = client.persistent_call(lambda x, n: x**n, static_argnums=1)
    assert power(X, 2).tolist() == pytest.approx((X**2).tolist())
    wide = client.persistent_call(lambda x: x + 1, config={"jax_enable_x64": True})
    assert wide(np.ones(2)).dtype == np.float64
    donating = client.persistent_call(lambda a, b: a + b, donate_argnums=0)
    assert donating(X, X).tolist() == (X + X).tolist()


def test_the_exception_of_a_function_is_the_users(client: Client) -> None:
    """Its type, its message and its line."""

    def fails(x: Any) -> Any:
        raise LookupError("of the user's")

    with pytest.raises(LookupError, match="of the user's") as caught:
        client.persistent_call(fails)(X)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'raise LookupError("of the user\'s")' in shown


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_builders_are_forked_from_what_has_their_modules(
    start_live: Callable[..., LiveServer],
) -> None:
    """Its own parent is the worker. Without it a builder is a new interpreter, and builds."""
    server = start_live("--build-in", "builder")
    fork_server, worker = pids(server, "fork_server_started")[-1], server.worker_pid()
    first = builder_pid(server)
    assert (parent_of(first), parent_of(fork_server)) == (fork_server, worker)
    os.kill(fork_server, signal.SIGKILL)
    until(lambda: not is_running(first))
    with connect(server.unix) as client:
        assert client.persistent_call(lambda x: x * 29)(X).tolist() == (X * 29).tolist()
        assert spent(client, lambda: client.persistent_call(lambda x: x * 31)(X)) == (1, 1, 1)
    assert parent_of(builder_pid(server, 2)) == worker


def parent_of(pid: int) -> int:
    """The process id of a process' parent."""
    return int(process_facts(pid)[1])


@reads_its_process
def test_what_calls_home_is_traced_in_the_worker(server: LiveServer, client: Client) -> None:
    """After the first time at once."""

    def prints(x: Any) -> Any:

        import jax

        jax.debug.callback(lambda: None)
        return x + os.getpid()

    f = client.persistent_call(prints)
    assert int(f(0)) == server.worker_pid()
    server.wait_for("builder_refused")
    assert spent(client, lambda: f(np.zeros(2, np.int32))) == (1, 1, 1)


def test_two_functions_with_one_program_share_it(client: Client) -> None:
    """The name of a program does not say where it was traced."""
    assert spent(client, lambda: client.persistent_call(lambda a: a * 3 + 11)(X)) == (1, 1, 1)
    assert spent(client, lambda: client.persistent_call(lambda b: b * 3 + 11)(X)) == (1, 1, 0)


def test_the_two_ways_share_programs_on_disk(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """What one server has built in its builder, another that has none finds, and the reverse."""
    cache = str(runtime / "programs")
    made = []
    for way in ("builder", "worker"):
        server = start_live("--build-in", way, name=way, JAXD_CACHE_DIR=cache)
        with connect(server.unix) as client:
            made.append(_spent_on_two_names(client))
        server.close()
    assert made == [((1, 1, 1), (1, 1, 0)), ((0, 0, 0), (0, 0, 0))]


def _on_both_devices(x: Any) -> Any:
    import jax

    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec: Any = jax.sharding.PartitionSpec
    constrain: Any = jax.lax.with_sharding_constraint
    return constrain(x * 2, jax.sharding.NamedSharding(mesh, spec("x")))


def test_a_program_for_two_devices_is_loaded_for_both(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """Its record names them, also when it was traced elsewhere."""
    two = devices(2)
    made = []
    for name in ("makes", "loads"):
        server = start_live(
            "--build-in", "builder", name=name, JAXD_CACHE_DIR=str(runtime / "two"), **two
        )
        with connect(server.unix) as client:
            double = client.persistent_call(_on_both_devices)
            before = counts(client)
            assert double(X).tolist() == (X * 2).tolist()
            made.append(np.subtract(counts(client), before).tolist())
        server.close()
    assert made == [[1, 1, 1], [0, 0, 0]]


def test_a_program_of_a_builder_is_moved_to_another_device(
    start_live: Callable[..., LiveServer],
) -> None:
    """As its bytes are, which serve every device: it is compiled once."""
    server = start_live("--build-in", "builder", **devices(2))
    with connect(server.unix) as client:
        f = client.persistent_call(lambda x: x * 7 + 3)
        found = [f.on(device=number)(X) for number in (0, 1)]
        assert [one.tolist() for one in found] == [(X * 7 + 3).tolist()] * 2
        assert counts(client)[2] == 1


def _spent_on_two_names(client: Client) -> Any:
    first = client.persistent_call(lambda x: x * 5 + 13)
    second = client.persistent_call(lambda renamed: renamed * 5 + 13)
    return spent(client, lambda: first(X)), spent(client, lambda: second(X))


@reads_its_process
def test_functions_are_built_elsewhere_once_a_second_client_is_there(
    start_live: Callable[..., LiveServer],
) -> None:
    """A builder is started then at the latest."""
    server = start_live()
    with connect(server.unix) as first:
        first.persistent_call(lambda x: x + 1)(X)
        with connect(server.unix) as second:
            second.persistent_call(lambda x: x + 2)(X)
            pid = builder_pid(server)

            def where(x: Any) -> Any:
                import os

                return x + os.getpid()

            assert int(second.persistent_call(where)(0)) == pid


@reads_its_process
def test_what_is_shown_of_a_function_is_traced_there_as_well(
    server: LiveServer, start_live: Callable[..., LiveServer]
) -> None:
    """With the same text; what crashes there leaves the worker alone."""

    def where(x: Any) -> Any:

        return x + os.getpid()

    def fails(x: Any) -> Any:
        raise LookupError("of the user's")

    def affine(x: Any) -> Any:
        return x * 3 + 1

    worker = start_live("--build-in", "worker")
    with connect(server.unix) as client, connect(worker.unix) as other:
        text = client.persistent_call(where).jaxpr(0)
        assert any(str(pid) in text for pid in builder_pids(server))
        assert str(worker.worker_pid()) in other.persistent_call(where).jaxpr(0)
        shown = [one.persistent_call(affine).jaxpr(X) for one in (client, other)]
        assert shown[0] == shown[1]
        assert spent(client, lambda: client.persistent_call(affine).jaxpr(X)) == (1, 0, 0)
        with pytest.raises(LookupError, match="of the user's"):
            client.persistent_call(fails).jaxpr(X)
        pid = server.worker_pid()
        with pytest.raises(InternalError, match="signal 11"):
            client.persistent_call(crashes).jaxpr(X)
        assert server.worker_pid() == pid


TOKENS = (
    test_results_home.HELD
    + """
box = first = make(x)
for _ in range(3):
    result, box = use(box)
facts["token"] = [type(box.how) is RemoteObject, box.how == first.how, float(result[0, 0])]
"""
)


@pytest.mark.parametrize("program", [test_results_home.TRAIN_STATE, TOKENS])
def test_results_come_home_as_from_the_worker(
    program: str, server: LiveServer, start_live: Callable[..., LiveServer]
) -> None:
    """The client's own classes and functions, and tokens of what only the server has."""
    worker = start_live("--build-in", "worker")
    facts = [test_results_home.run_program(one, program) for one in (server, worker)]
    for one in facts:
        del one["traces"]  # what a builder has to leave to the worker is traced by both
    assert facts[0] == facts[1]


def test_eight_threads_that_ask_at_once_build_once(client: Client) -> None:
    """Also when they build eight functions."""
    functions = [client.persistent_call(lambda x, n=n: x * n, extra_key=str(n)) for n in range(8)]
    found: list[Any] = []

    def ask(n: int) -> None:
        found.append((n, functions[n](X).tolist()))

    def all_twice() -> None:
        threads = [threading.Thread(target=ask, args=(n % 8,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    before = counts(client)
    all_twice()
    assert np.subtract(counts(client), before)[:2].tolist() == [8, 8]
    assert sorted(found) == sorted((n, (X * n).tolist()) for n in range(8) for _ in range(2))


def test_a_cancelled_call_ends_in_the_builder(client: Client, tmp_path: Path) -> None:
    """Whatever the function swallows."""
    gate = Gate(tmp_path / "gate")
    path = gate.path

    def endless(x: Any) -> Any:
        Path(path).read_bytes()
        while True:
            try:
                x = x + 1
            except Exception:  # noqa: BLE001  as careless code does
                continue

    before = client.statistics()
    future = client.persistent_call(endless).submit(X)
    with gate.reached():
        assert future.cancel()
    gate.let_leave(client)
    assert client.statistics().cancelled_calls == before.cancelled_calls + 1
    assert client.persistent_call(lambda x: x * 3)(X).tolist() == (X * 3).tolist()


def compiles_for_ever(x: Any) -> Any:
    """XLA evaluates what does not depend on an argument: here 90 thousand million additions."""
    from jax import lax

    numbers = lax.iota(np.float32, 3_000_000)
    return x + lax.reduce_window(numbers, np.float32(0), lax.add, (30_000,), (1,), "VALID").sum()


def test_a_single_client_that_works_has_a_builder_ready_for_the_next(
    start_live: Callable[..., LiveServer],
) -> None:
    """Its own functions are built in the worker all the same, whoever looks at the server."""
    server = start_live()
    with connect(server.unix) as client, connect(server.unix) as other:
        other.statistics()
        client.persistent_call(lambda x: x + 1)(X)
        pid = builder_pid(server)

        def where(x: Any) -> Any:
            import os

            return x + os.getpid()

        with pytest.warns(TracedReadWarning):
            assert int(client.persistent_call(where)(0)) == server.worker_pid()
        with pytest.warns(TracedReadWarning):
            assert int(other.persistent_call(where)(np.zeros(2, np.int32))[0]) == pid


def until_gone(pid: int) -> None:
    """Returns when there is no such process."""
    until(lambda: not is_running(pid))


def being_compiled(client: Client, function: Any) -> Any:
    """A call of it, once it has been lowered."""
    before = client.statistics().lowers
    future = function.submit(X)
    until(lambda: client.statistics().lowers > before)
    return future


def crashes(x: Any) -> Any:
    """Ends its process while it is traced, as native code of a library may."""
    import ctypes

    return x + ctypes.string_at(0)[0]
