"""Builders that crash, are killed or hang, and builds that nobody waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect
from jaxd.errors import InternalError
from tests.end_to_end.test_builders import (
    X,
    being_compiled,
    builder_pid,
    compiles_for_ever,
    crashes,
    spent,
    until_gone,
)
from tests.live_server import LiveServer
from tests.server.staging import is_running, until

pytestmark = pytest.mark.faults


def _ends(x: Any) -> Any:
    import os

    os._exit(3)


def test_a_function_that_ends_its_process_ends_only_the_builder(
    start_live: Callable[..., LiveServer],
) -> None:
    """Its caller is told; the worker and what is warm live on, and the next builder comes."""
    server = start_live("--build-in", "builder")
    with connect(server.unix) as client:
        warm = client.persistent_call(lambda x: x + 1)
        warm(X)
        worker = server.worker_pid()
        for _ in range(2):
            with pytest.raises(InternalError, match="exit code 3"):
                client.persistent_call(_ends)(X)
        assert spent(client, lambda: warm(X)) == (0, 0, 0)
        assert client.persistent_call(lambda x: x + 2)(X).tolist() == (X + 2).tolist()
        assert server.worker_pid() == worker


def test_a_tracer_that_is_killed_while_it_traces(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """By somebody else: the build that it worked on is made once more, unseen."""
    server = start_live("--build-in", "builder")
    began = runtime / "began"

    def sleeps(x: Any, path: str) -> Any:
        import pathlib
        import time

        if not pathlib.Path(path).exists():
            pathlib.Path(path).touch()
            time.sleep(60)
        return x + 2

    with connect(server.unix) as client:
        f = client.persistent_call(sleeps, static_argnums=1)
        future = f.submit(X, str(began))
        until(began.exists)
        os.kill(builder_pid(server), signal.SIGKILL)
        assert future.result(30).tolist() == (X + 2).tolist()
        assert client.persistent_call(lambda x: x + 3)(X).tolist() == (X + 3).tolist()


def test_nothing_is_left_of_a_worker_that_is_killed(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """Its builder ends with it, also while it traces and hangs."""
    server = start_live("--build-in", "builder")
    began = runtime / "began"

    def hangs(x: Any, path: str) -> Any:
        import pathlib

        if pathlib.Path(path).exists():
            raise InterruptedError("the next worker was asked as well")
        pathlib.Path(path).touch()
        while True:
            pass

    client = connect(server.unix)
    future = client.persistent_call(hangs, static_argnums=1).submit(X, str(began))
    until(began.exists)
    builder = builder_pid(server)
    os.kill(server.worker_pid(), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{builder}").exists())
    assert isinstance(future.exception(30), InterruptedError)
    client.close()


def test_a_compilation_that_no_call_waits_for_is_stopped(
    start_live: Callable[..., LiveServer],
) -> None:
    """Its builder is ended, its place is free, and nothing is left of it; it may come again."""
    server = start_live("--build-in", "builder", "--builds", "1")
    with connect(server.unix) as client:
        endless = client.persistent_call(compiles_for_ever)
        for count in (1, 2):
            future = being_compiled(client, endless)
            pid = builder_pid(server, count)
            assert future.cancel()
            until_gone(pid)
            assert client.persistent_call(lambda x: x * 3)(X).tolist() == (X * 3).tolist()
            until(lambda: not client.caller.session.ask("statistics")["left_behind"])
        assert client.statistics().compiles == 1


def test_a_small_function_beside_an_endless_compilation(
    start_live: Callable[..., LiveServer],
) -> None:
    """Of another client: it is answered, and what it is beside goes on."""
    server = start_live("--builds", "1")
    with connect(server.unix) as one, connect(server.unix) as other:
        future = being_compiled(one, one.persistent_call(compiles_for_ever))
        for factor in range(3):
            f = other.persistent_call(lambda x, n=factor: x * n, extra_key=str(factor))
            assert f(X).tolist() == (X * factor).tolist()
        assert not future.done()
        assert future.cancel()


def test_a_builder_that_is_killed_while_it_compiles(
    start_live: Callable[..., LiveServer],
) -> None:
    """The build is made once more in another one; the second time its caller is told."""
    server = start_live("--build-in", "builder")
    with connect(server.unix) as client:
        worker = server.worker_pid()
        future = being_compiled(client, client.persistent_call(compiles_for_ever))
        before = client.statistics().lowers
        os.kill(builder_pid(server), signal.SIGKILL)
        until(lambda: client.statistics().lowers > before)
        assert not future.done()
        second = server.wait_for("builder_ready", 2)[-1]["pid"]
        os.kill(next(pid for pid in (second, builder_pid(server, 2)) if is_running(pid)), 9)
        with pytest.raises(InternalError, match=r"in another one \(signal 9\)"):
            future.result(30)
        assert client.persistent_call(lambda x: x + 3)(X).tolist() == (X + 3).tolist()
        assert server.worker_pid() == worker


def test_a_crash_while_tracing_leaves_the_values_of_others(
    start_live: Callable[..., LiveServer],
) -> None:
    """Also in the first moments of a second client."""
    server = start_live()
    with connect(server.unix) as one:
        kept = one.persistent_call(lambda x: x * 2).remote(X)
        worker = server.worker_pid()
        with connect(server.unix) as other:
            with pytest.raises(InternalError, match="signal 11"):
                other.persistent_call(crashes)(X)
            assert server.worker_pid() == worker
            assert np.asarray(kept).tolist() == (X * 2).tolist()


def test_a_trace_that_cannot_be_interrupted_is_stopped(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """Such as one that waits in C: after a moment its builder is ended, whatever others hold."""
    server = start_live("--build-in", "builder")
    began = runtime / "began"

    def sleeps(x: Any, path: str) -> Any:
        import pathlib
        import time

        pathlib.Path(path).touch()
        time.sleep(600)
        return x

    with connect(server.unix) as client:
        future = client.persistent_call(sleeps, static_argnums=1).submit(X, str(began))
        until(began.exists)
        pid = builder_pid(server)
        assert future.cancel()
        until_gone(pid)
        assert client.persistent_call(lambda x: x + 5)(X).tolist() == (X + 5).tolist()


@pytest.mark.parametrize("how", ["cancelled", "builder", "worker"])
def test_processes_that_a_trace_has_started_do_not_stay(
    how: str, start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """When its builder is ended because no call waits, or ends, or its worker does."""
    server = start_live("--build-in", "builder")
    began = runtime / "began"

    def starts_some(x: Any, path: str) -> Any:
        import ctypes
        import pathlib
        import time

        if pathlib.Path(path).exists():
            raise InterruptedError("it was traced once more")
        for _ in range(2):  # as native code of a library may
            if not ctypes.PyDLL(None).fork():
                ctypes.PyDLL(None).pause()
        pathlib.Path(path).touch()
        time.sleep(600)
        return x

    with connect(server.unix) as client:
        future = client.persistent_call(starts_some, static_argnums=1).submit(X, str(began))
        until(began.exists)
        builder = builder_pid(server)
        threads = Path(f"/proc/{builder}/task").iterdir()
        left = [int(pid) for one in threads for pid in (one / "children").read_text().split()]
        assert len(left) == 2
        if how == "cancelled":
            assert future.cancel()
        else:
            os.kill(builder if how == "builder" else server.worker_pid(), signal.SIGKILL)
            assert isinstance(future.exception(60), InterruptedError)
        until(lambda: not any(map(is_running, left)))


WAITS = """
import ctypes, os, sys
import numpy as np
from jaxd import connect
from tests.end_to_end.test_builders import compiles_for_ever
with connect(sys.argv[1]) as client:
    client.info()
    if "forks" in sys.argv and not ctypes.CDLL(None).fork():  # as a library may, unseen by Python
        os.read(0, 1)
        os._exit(0)
    client.persistent_call(compiles_for_ever)(np.linspace(0, 1, 4, dtype=np.float32))
"""


@pytest.mark.parametrize(
    ("how", "more"), [(signal.SIGKILL, []), (signal.SIGKILL, ["forks"]), (signal.SIGINT, [])]
)
def test_a_client_that_is_gone_waits_for_nothing(
    how: signal.Signals, more: list[str], start_live: Callable[..., LiveServer]
) -> None:
    """What it alone waited for is stopped at once, and its session ends with its process.

    Also where a process that it forked has its connection and lives on.
    """
    server = start_live("--build-in", "builder", "--builds", "1", "--session-grace-s", "3600")
    with connect(server.unix) as client:
        before = client.statistics().lowers
        with subprocess.Popen(
            [sys.executable, "-c", WAITS, server.unix, *more],
            env={**server.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            until(lambda: client.statistics().lowers > before)
            pid = builder_pid(server)
            process.send_signal(how)
            until_gone(pid)
            until(lambda: client.caller.session.ask("statistics")["sessions"] == 1)
        assert client.persistent_call(lambda x: x * 3)(X).tolist() == (X * 3).tolist()
