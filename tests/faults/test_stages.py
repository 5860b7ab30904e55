"""The worker is killed, broken or stopped at each stage of a call."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from jaxd import Client, connect, errors
from tests.end_to_end.gates import Gate, in_thread
from tests.faults.others import unharmed
from tests.faults.proxy import Proxy
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.faults

StartLive = Callable[..., LiveServer]

LARGE: Final = 4 << 20
OPTIONS: Final = ("--build-in", "worker", "--builds", "2")


@contextmanager
def at_receive(server: LiveServer, gate: Gate) -> Iterator[Any]:
    """Half of a large argument is there."""
    with Proxy(port_of(server)) as proxy, connect(proxy.address, token=TOKEN) as client:
        total = client.persistent_call(lambda x: x.sum() * 0 + 6)
        assert float(total(np.ones(LARGE, np.float32))) == 6.0
        proxy.strike("hold", "up", 4 * LARGE // 2)
        call = in_thread(total, np.ones(LARGE, np.float32))
        assert proxy.struck.wait(30)
        yield call, proxy.heal


@contextmanager
def at_trace(server: LiveServer, gate: Gate) -> Iterator[Any]:
    """The function is being traced, for the first time."""
    marker = Path(gate.path + ".again")

    def function(x: Any) -> Any:
        if not marker.exists():
            Path(gate.path).read_bytes()
        return x * 0 + 6

    with connect(server.unix) as client:
        call = in_thread(client.persistent_call(function), 1.0)
        with ExitStack() as held:
            held.enter_context(gate.reached())
            marker.touch()
            yield call, held.close


@contextmanager
def at_compile(server: LiveServer, gate: Gate) -> Iterator[Any]:
    """XLA is at work."""

    def function(x: Any) -> Any:
        import jax.numpy as jnp

        for step in range(150):
            x = jnp.sin(x @ x.T + step) / 8
        return x.sum() * 0 + 6

    with connect(server.unix) as client:
        compiling = threading.Event()
        event = client.caller.event

        def hear(connection: Any, number: int, kind: str, content: dict[str, Any]) -> None:
            if content.get("stage") == "compile":
                compiling.set()
            event(connection, number, kind, content)

        client.caller.event = hear  # type: ignore[method-assign]
        call = in_thread(client.persistent_call(function), np.ones((8, 8), np.float32))
        assert compiling.wait(30)
        yield call, lambda: None


@contextmanager
def at_run(server: LiveServer, gate: Gate) -> Iterator[Any]:
    """The program is running."""
    marker = Path(gate.path + ".again")

    def function(x: Any) -> Any:
        import jax

        def look(value: Any) -> Any:
            if not marker.exists():
                Path(gate.path).read_bytes()
            return value * 0 + 6

        return jax.pure_callback(look, jax.typeof(x), x)

    with connect(server.unix) as client:
        call = in_thread(client.persistent_call(function), np.float32(1))
        with ExitStack() as held:
            held.enter_context(gate.reached())
            marker.touch()
            yield call, held.close


@contextmanager
def at_reply(server: LiveServer, gate: Gate) -> Iterator[Any]:
    """Half of a large result has come home."""
    with Proxy(port_of(server)) as proxy, connect(proxy.address, token=TOKEN) as client:

        @client.persistent_call(results="numpy")
        def large(x: Any) -> Any:
            import jax.numpy as jnp

            return jnp.full(LARGE, x)

        assert large(np.float32(2)).sum() == 2 * LARGE
        proxy.strike("hold", "down", 4 * LARGE // 2)
        call = in_thread(lambda: large(np.float32(6)).mean())
        assert proxy.struck.wait(30)
        yield call, proxy.heal


def port_of(server: LiveServer) -> int:
    return int(server.tcp.rpartition(":")[2])


STAGES: Final = {
    "receive": at_receive,
    "trace": at_trace,
    "compile": at_compile,
    "run": at_run,
    "reply": at_reply,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda one: one.name)
def test_the_worker_dies(
    start_live: StartLive, runtime: Path, stage: str, number: signal.Signals
) -> None:
    """The call is repeated unseen and right; others notice nothing."""
    server = start_live(*OPTIONS)
    gate = Gate(runtime / "gate")
    with unharmed(server), STAGES[stage](server, gate) as (call, heal):
        pid = server.worker_pid()
        os.kill(pid, number)
        server.wait_for("worker_exited", pid=pid, signal=number.name)
        heal()
        assert float(call.result(50)) == 6.0


@pytest.mark.parametrize("stage", STAGES)
def test_the_worker_is_stopped_for_a_while(
    start_live: StartLive, runtime: Path, stage: str
) -> None:
    """The host says so after its time; then the call goes on, and nothing is lost."""
    server = start_live(*OPTIONS, "--stuck-after-s", "1")
    gate = Gate(runtime / "gate")
    with unharmed(server), STAGES[stage](server, gate) as (call, heal):
        pid = server.worker_pid()
        os.kill(pid, signal.SIGSTOP)
        server.wait_for("worker_stuck", state="stopped")
        os.kill(pid, signal.SIGCONT)
        heal()
        assert float(call.result(50)) == 6.0
    assert server.worker_pid() == pid


@pytest.mark.parametrize("stage", ["trace", "run"])
def test_the_worker_has_no_memory_left(start_live: StartLive, stage: str) -> None:
    """By its address space (RLIMIT_AS): a typed error, and the worker lives."""
    server = start_live(*OPTIONS)

    def greedy(x: Any) -> Any:
        import jax.numpy as jnp

        if stage == "trace":
            np.ones(1 << 32)
        return jnp.ones((1 << 17, 1 << 14)).cumsum(0) * x

    with unharmed(server), connect(server.unix) as client:
        pid = server.worker_pid()
        with open(f"/proc/{pid}/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + (1 << 30), -1))
        with pytest.raises((MemoryError, errors.RemoteError), match=r"allocat|memory|room"):
            client.persistent_call(greedy)(np.float32(1))
        assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
        resource.prlimit(pid, resource.RLIMIT_AS, (-1, -1))
    assert server.worker_pid() == pid


def _is_ready(client: Client) -> bool:
    try:
        return client.statistics().epoch > 0
    except errors.JaxdError:
        return False


def test_the_whole_server_is_killed_and_started_again(start_live: StartLive) -> None:
    """Host and worker die together; a client finds the next server at the same address."""
    first = start_live()
    with connect(first.unix) as client:
        double = client.persistent_call(lambda x: x * 2)
        assert float(double(1.0)) == 2.0
        first.process.kill()
        first.process.wait()
        start_live()
        until(lambda: _is_ready(client))
        assert float(double(3.0)) == 6.0
