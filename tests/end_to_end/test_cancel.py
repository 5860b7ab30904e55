"""Calls that nobody waits for, on a real server: they end, and cost nobody else anything."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
import pytest

from jaxd import Client, connect
from tests.faults.proxy import Proxy
from tests.live_server import ROOT, TOKEN, LiveServer
from tests.server.staging import until

X = np.linspace(0, 1, 4, dtype=np.float32)

INTERRUPTED = """
import _thread, os, signal, sys, threading, time
import numpy as np
from jaxd import persistent_call

signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it

@persistent_call(results=os.environ.get("RESULTS", "auto"))
def endless(x):
    print("tracing", flush=True)
    while True:
        x = x + 1

def interrupt_when_told():
    sys.stdin.readline()
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name not in ("receive_into", "_receive"):
        time.sleep(0)
    _thread.interrupt_main()

threading.Thread(target=interrupt_when_told, daemon=True).start()

try:
    endless(np.float32(1))
except KeyboardInterrupt:
    print("interrupted", flush=True)

@persistent_call
def next_one(x):
    return x * 2

print(float(next_one(np.float32(4))), flush=True)
"""


@contextmanager
def tracing(
    server: LiveServer, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A client whose first function is traced by now, and what it says after that."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env={**server.environment, **environment},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "tracing\n"
            yield process, process.stdout
        except BaseException:  # it may be the one that does not end
            process.kill()
            raise


def at_the_keyboard(process: subprocess.Popen[str]) -> None:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)


def by_a_thread(process: subprocess.Popen[str]) -> None:
    """As a debugger's button; also what a Ctrl-C is that comes just before a system call."""
    assert process.stdin is not None
    process.stdin.write("now\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", [at_the_keyboard, by_a_thread])
def test_an_interrupt_ends_the_trace(
    live: LiveServer, client: Client, interrupt: Callable[[subprocess.Popen[str]], None]
) -> None:
    """The program goes on with its next call, and the server has nothing left of the first."""
    before = client.statistics()
    with tracing(live) as (process, said):
        interrupt(process)
        assert said.readline() == "interrupted\n"
        assert said.readline() == "8.0\n"
    until(lambda: client.caller.session.ask("statistics")["left_behind"] == [])
    now = client.statistics()
    assert now.cancelled_calls == before.cancelled_calls + 1
    assert now.lowers <= before.lowers + 1  # of the next one, the first time


@pytest.mark.slow
@pytest.mark.parametrize("results", ["numpy", "remote"])
def test_a_server_that_stops_does_not_wait_for_a_trace_whose_client_cannot_come_back(
    start_live: Callable[..., LiveServer], results: str
) -> None:
    """Its connection was cut, and it is not connected when the server begins to stop."""
    server = start_live("--session-grace-s", "3600")
    with (
        Proxy(int(server.tcp.rpartition(":")[2])) as proxy,
        tracing(server, JAXD_SERVER=proxy.address, RESULTS=results) as (process, _said),
        connect(server.unix) as other,
    ):
        proxy.close()
        until(lambda: other.statistics().connections == 1)
        server.process.terminate()
        assert server.process.wait(60) == 0
        server.wait_for("drained")
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("results", ["numpy", pytest.param("remote", marks=pytest.mark.soak)])
def test_a_call_that_is_cancelled_after_its_connection_was_cut_holds_no_place(
    start_live: Callable[..., LiveServer], tmp_path: Path, results: Any
) -> None:
    """The client is back, and its call was repeated under another number: both are given up."""
    server, begun = start_live("--builds", "1"), tmp_path / "begun"

    def endless(x: Any) -> Any:
        begun.touch()
        while True:
            time.sleep(0.01)

    with (
        Proxy(int(server.tcp.rpartition(":")[2])) as proxy,
        connect(proxy.address, token=TOKEN) as client,
        connect(server.unix) as other,
    ):
        future = client.persistent_call(endless, results=results).submit(X)
        until(begun.exists)
        proxy.cut()
        client.statistics()  # it is back
        assert future.cancel()
        assert other.persistent_call(lambda x: x * 2, timeout_s=30)(X).tolist() == (X * 2).tolist()


def heavy(number: int) -> Callable[[Any], Any]:
    """A function that takes jax some tenths of a second to trace, and that no server knows."""

    def layered(x: Any) -> Any:
        import jax
        import jax.numpy as jnp

        def layer(y: Any) -> Any:
            y, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c * 0.5 + number), None), y, length=3)
            return jax.lax.cond(y.sum() > 0, lambda z: z * 2, lambda z: z - 1, y)

        def loss(y: Any) -> Any:
            for _ in range(12):
                y = jax.vmap(layer)(y.reshape(2, 2)).reshape(4)
            return (y**2).sum()

        return jax.grad(loss)(x)

    return layered


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")  # it compiles on purpose
def test_jax_is_whole_after_many_interrupts(
    start_live: Callable[..., LiveServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """At moments that nobody chose; what is traced afterwards is what it is without them."""
    server = start_live("--cache-dir", "none", "--stop-grace-s", "10")
    chosen = random.Random(7)
    with connect(server.unix) as client:
        for number in range(60):
            future = client.persistent_call(heavy(number)).submit(X)
            with suppress(TimeoutError):
                future.result(chosen.uniform(0.0, 0.25))
            future.cancel()
            if number % 20 == 19:
                until(lambda: not client.caller.session.ask("statistics")["left_behind"])
                for again in (number, -number):  # one that was interrupted, and a new one
                    here = jax.jit(heavy(again))(X)
                    there = client.persistent_call(heavy(again), results="numpy")(X)
                    assert np.allclose(there, here, rtol=1e-5)
        until(lambda: not client.caller.session.ask("statistics")["left_behind"])
        now = client.statistics()
    with capsys.disabled():
        print(
            f"\n{now.cancelled_calls} calls cancelled, {now.traces} traces begun, "
            f"{now.lowers} ended, {now.compiles} compiled"
        )
    assert now.epoch == 1
    assert now.traces - now.lowers > 20
    assert not [line for line in server.lines if line["event"] == "left_behind"]
