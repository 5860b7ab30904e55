"""Functions that end the worker: who is told what, and who is not harmed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect, errors
from jaxd.connection.control_client import send_request
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.end_to_end.gates import Gate, advice, in_thread
from tests.faults.cgroups import memory_cgroup
from tests.live_server import ROOT, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.faults

StartLive = Callable[..., LiveServer]
NAME = "deadly.<locals>.function"


def deadly(way: str) -> Callable[[Any], Any]:
    """A function that ends the worker while it is traced, where it cannot be caught."""

    def function(x: Any) -> Any:
        import ctypes
        import os

        if way == "segfault":
            ctypes.string_at(0)
        if way == "exit":
            os._exit(7)
        return x * 3

    return function


def command(server: LiveServer, *words: str) -> subprocess.CompletedProcess[str]:
    """`jaxd functions` with these words."""
    return subprocess.run(
        [sys.executable, "-m", "jaxd.cli", "functions", *words, "--server", server.unix],
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_function_that_ends_workers_is_quarantined(start_live: StartLive, runtime: Path) -> None:
    """It costs its caller, and nobody who was under way beside it; changed or released, it runs."""
    server, gate = start_live("--build-in", "worker", "--builds", "2"), Gate(runtime / "gate")
    marker = runtime / "marker"

    def bystander(x: Any) -> Any:
        if not marker.exists():
            Path(gate.path).read_bytes()
        return x + 1

    with connect(server.unix) as client, connect(server.unix) as other:
        innocent = in_thread(other.persistent_call(bystander), 1.0)
        guilty = client.persistent_call(deadly("segfault"))
        with gate.reached():
            marker.touch()
            with pytest.raises(errors.WorkerLost, match=r"while nothing else ran \(SIGSEGV\)"):
                guilty(1.0)
        assert float(innocent.result(30)) == 2.0
        assert client.statistics().epoch == 3
        with pytest.raises(errors.Quarantined, match="2 times while nothing else ran") as caught:
            guilty(1.0)
        assert "--release" in advice(caught.value)
        assert client.statistics().epoch == 4
        with pytest.raises(errors.Quarantined):
            guilty.submit(2.0).result(30)
        assert float(client.persistent_call(deadly("corrected"))(1.0)) == 3.0
        assert client.statistics().epoch == 4
        (row,) = json.loads(command(server, "--quarantined", "--json").stdout)["quarantined"]
        assert (row["name"], row["how"]) == (NAME, "SIGSEGV")
        assert "SIGSEGV" in command(server, "--quarantined").stdout
        assert command(server, "--release", "nothing").returncode == 1
        assert f"released {NAME}" in command(server, "--release", row["fingerprint"][:8]).stdout
        with pytest.raises(errors.WorkerLost):
            guilty(1.0)
        assert "no function is" in command(server, "--quarantined").stdout
    lines = server.wait_for("function_quarantined")
    assert [line["how"] for line in lines if line["event"] == "function_quarantined"] == ["SIGSEGV"]


def test_a_function_in_quarantine_stays_there_over_a_restart(start_live: StartLive) -> None:
    """Of the whole server: it ends no further worker, and is called again once it is released."""

    def guilty(server: LiveServer) -> Any:
        with connect(server.unix) as client:
            return client.persistent_call(deadly("exit"))(1.0)

    first = start_live("--build-in", "worker")
    with pytest.raises(errors.WorkerLost, match="and again"):
        guilty(first)
    with pytest.raises(errors.Quarantined):
        guilty(first)
    first.close()
    second = start_live("--build-in", "worker")
    with pytest.raises(errors.Quarantined, match="2 times while nothing else ran"):
        guilty(second)
    assert NAME in command(second, "--quarantined").stdout
    assert f"released {NAME}" in command(second, "--release", NAME).stdout
    second.close()
    third = start_live("--build-in", "worker")
    assert "no function is" in command(third, "--quarantined").stdout
    with connect(third.unix) as client:
        assert client.statistics().epoch == 1
        assert float(client.persistent_call(deadly("corrected"))(1.0)) == 3.0


def test_a_suspect_spends_nobody_elses_retry(start_live: StartLive) -> None:
    """Eight calls are under way when two deadly ones run: all eight have their answers."""
    server = start_live("--build-in", "worker", "--builds", "2")
    with connect(server.unix) as client:

        def slow(x: Any) -> Any:
            import time

            import jax

            def wait(value: Any) -> Any:
                time.sleep(0.3)
                return value

            return jax.pure_callback(wait, jax.typeof(x), x) + 1

        waits = [in_thread(client.persistent_call(slow), float(n)) for n in range(8)]
        dead = [in_thread(client.persistent_call(deadly(way)), 1.0) for way in ("segfault", "exit")]
        assert [float(one.result(50)) for one in waits] == [n + 1.0 for n in range(8)]
        for one in dead:
            assert isinstance(one.exception(50), errors.WorkerLost)
        assert client.statistics().epoch <= 5


COUNTS = """
import pathlib
from jaxd_server.runtime import system_memory
system_memory._kills_in = lambda _: int(pathlib.Path({path!r}).read_text())
"""


def test_the_system_has_no_memory_left(start_live: StartLive, tmp_path: Path) -> None:
    """What arrays may take is lowered, and who held most of it is told so; nobody is blamed."""
    count, hook = tmp_path / "oom_kills", tmp_path / "hook"
    count.write_text("0")
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(COUNTS.format(path=str(count)))
    folders = [str(hook), *(str(ROOT / part) for part in ("client", "server", "shared"))]
    server = start_live("--value-bytes", "64M", PYTHONPATH=os.pathsep.join(folders))
    with connect(server.unix) as most, connect(server.unix) as least:
        large, small = (
            most.put(np.zeros(12 << 20, np.uint8)),
            least.put(np.zeros(4 << 20, np.uint8)),
        )
        control = control_path(Address.parse(server.unix))

        def host_knows_of(nbytes: int) -> bool:  # a busy worker does not answer it at once
            status = send_request(control, {"ask": "status"}) or {}
            return bool(status["worker"]["value_bytes"] == nbytes)

        until(lambda: host_knows_of(16 << 20))
        count.write_text("1")
        os.kill(server.worker_pid(), signal.SIGKILL)
        with pytest.raises(errors.ValuesDied, match=r"memory was short.* 12\.0 MiB.* 12\.0 M"):
            np.asarray(large)
        assert not np.asarray(small).any()  # made again: it is none of its fault
        with pytest.warns(errors.ValuesDiedWarning, match=r"memory was short.* 12\.0 MiB"):
            most.persistent_call(lambda x: x + 1)(1.0)
        with pytest.raises(errors.ValuesFull, match=r"of 12\.0 MiB"):
            most.put(np.zeros(13 << 20, np.uint8))
        kept = most.put(np.zeros(7 << 20, np.uint8))
        until(lambda: host_knows_of(11 << 20))
        count.write_text("2")
        os.kill(server.worker_pid(), signal.SIGKILL)
        with pytest.raises(errors.ValuesDied):
            np.asarray(kept)
        with pytest.raises(errors.ValuesFull, match=r"of 8\.2 MiB"):
            most.put(np.zeros(9 << 20, np.uint8))
    assert not (send_request(control, {"ask": "quarantined"}) or {})["quarantined"]


def test_the_system_ends_the_worker_for_want_of_memory(start_live: StartLive) -> None:
    """By the limit of a cgroup: as above; who calls something else is told as well."""
    server = start_live("--value-bytes", "64M", "--build-in", "worker")

    def takes_more(x: Any) -> Any:
        taken = bytearray(1 << 30)
        taken[:: 1 << 12] = bytes([1]) * (1 << 18)  # each of its pages is there
        return x + len(taken)

    with connect(server.unix) as most, connect(server.unix) as least:
        kept = most.put(np.zeros(12 << 20, np.uint8)), least.put(np.zeros(4 << 20, np.uint8))
        control = control_path(Address.parse(server.unix))
        assert (send_request(control, {"ask": "status"}) or {})["worker"]["value_bytes"] == 16 << 20
        with memory_cgroup(256 << 20) as cgroup:  # what it has taken so far is not counted there
            cgroup.put(server.worker_pid())
            send_request(
                control, {"ask": "status"}
            )  # the host looks at its cgroup, as it often does
            assert least.persistent_call(takes_more)(1) == 1 + (1 << 30)  # in the next worker
            with pytest.warns(errors.ValuesDiedWarning, match=r"memory was short.* 12\.0 MiB now"):
                most.persistent_call(lambda x: x + 1)(1.0)
        with pytest.raises(errors.ValuesDied, match="memory was short"):
            np.asarray(kept[0])
        with pytest.raises(errors.ValuesFull, match=r"of 12\.0 MiB"):
            most.put(np.zeros(13 << 20, np.uint8))
