"""Servers that share a store: what one of them has built, the others load."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd import connect
from jaxd.errors import JaxdError
from tests.end_to_end.gates import Gate, stop_at
from tests.live_server import ROOT, LiveServer, source_environment
from tests.server.staging import until

KEY = "a-key-of-tests-0123456789-abcdefghij"
PROGRAM = """
import json, sys
import jaxd

@jaxd.persistent_call
def step(x):
    import os
    return x * 2 + float(os.environ.get("STORE_RATE", "0"))

value = float(step(1.0))
found = jaxd.statistics()
print(json.dumps([value, found.traces, found.compiles, found.executable_loads]))
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where functions stop while they are traced."""
    return Gate(tmp_path / "gate")


StartMember = Callable[..., LiveServer]


@pytest.fixture
def store(runtime: Path) -> Path:
    """The folder."""
    folder = runtime / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def start(start_live: Callable[..., LiveServer], store: Path, runtime: Path) -> StartMember:
    """Starts a server with a cache folder of its own: that of another machine."""

    def start_(name: str, *arguments: str, **variables: str) -> LiveServer:
        given = {"JAXD_STORE": str(store), "JAXD_STORE_KEY": KEY}
        given |= {"JAXD_CACHE_DIR": str(runtime / f"cache-{name}")} | variables
        given = {variable: value for variable, value in given.items() if value}
        return start_live(*arguments, name=name, **given)

    return start_


def answer(server: LiveServer, **variables: str) -> list[float]:
    """The result of the program in a fresh client; traces, compiles and loads of the server."""
    done = server.run(PROGRAM, **variables)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


def flushed(server: LiveServer) -> None:
    """Ends a server, which writes what waits to be written."""
    assert server.close() == 0


def files(store: Path) -> dict[str, bytes]:
    """What lies in a store."""
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_what_one_server_has_built_another_loads(start: StartMember) -> None:
    """Without a trace, also of what it reads of its client's process; another value is built."""
    first = start("a")
    assert answer(first) == [2.0, 1, 1, 0]
    flushed(first)
    second = start("b")
    assert answer(second) == [2.0, 0, 0, 1]
    assert answer(second, STORE_RATE="3") == [5.0, 1, 1, 1]


@pytest.mark.slow
def test_what_was_kept_before_there_was_a_store_is_shared(start: StartMember) -> None:
    """Once it is used."""
    alone = start("a", JAXD_STORE="")
    assert answer(alone) == [2.0, 1, 1, 0]
    flushed(alone)
    first = start("a")
    assert answer(first) == [2.0, 0, 0, 1]
    flushed(first)
    assert answer(start("b")) == [2.0, 0, 0, 1]


@pytest.mark.slow
def test_a_reader_writes_nothing(start: StartMember, store: Path) -> None:
    """It takes what is there, builds the rest, and keeps that for itself."""
    first = start("a")
    answer(first)
    flushed(first)
    before = files(store)
    reader = start("b", JAXD_STORE_READ_ONLY="1")
    assert answer(reader) == [2.0, 0, 0, 1]
    assert answer(reader, STORE_RATE="3") == [5.0, 1, 1, 1]
    flushed(reader)
    assert files(store) == before
    assert answer(start("b", JAXD_STORE_READ_ONLY="1"), STORE_RATE="3") == [5.0, 0, 0, 1]


def change(path: Path) -> None:
    """Changes the last byte of a file."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.slow
def test_a_changed_byte_is_a_miss_and_a_warning(start: StartMember, store: Path) -> None:
    """The server that finds it builds anew, and puts a sound one in its place."""
    first = start("a")
    answer(first)
    flushed(first)
    for path in store.rglob("programs/*"):
        change(path)
    second = start("b")
    assert answer(second) == [2.0, 1, 1, 0]
    second.wait_for("store_entry_refused")
    flushed(second)
    assert answer(start("c")) == [2.0, 0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"JAXD_STORE_KEY": KEY[::-1]},
        {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_dump_max_hlo_modules=7"},
    ],
    ids=["key", "target"],
)
def test_nothing_is_loaded_with_another(start: StartMember, other: dict[str, str]) -> None:
    """Key; or flags of XLA, which stand for all that a program depends on."""
    first = start("a")
    answer(first)
    flushed(first)
    assert answer(start("b", **other)) == [2.0, 1, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("JAXD_STORE_KEY", "secret", "JAXD_STORE_KEY can be guessed"),
        ("JAXD_CACHE_DIR", "none", "a store needs a cache folder"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused(
    start: StartMember, store: Path, variable: str, value: str, reason: str
) -> None:
    """The server works without it, and says so."""
    server = start("a", **{variable: value})
    (line,) = [line for line in server.lines if line["event"] == "store_refused"]
    assert reason in line["reason"]
    assert answer(server) == [2.0, 1, 1, 0]
    flushed(server)
    assert files(store) == {}


@pytest.mark.slow
def test_without_a_key_the_user_has_one(start: StartMember, runtime: Path) -> None:
    """A file that the first server makes, and the others find."""
    first = start("a", JAXD_STORE_KEY="")
    answer(first)
    flushed(first)
    assert (runtime / "config" / "jaxd" / "store.key").stat().st_mode & 0o777 == 0o600
    assert answer(start("b", JAXD_STORE_KEY="")) == [2.0, 0, 0, 1]


@pytest.mark.slow
def test_a_store_is_removed_under_a_running_server(start: StartMember, store: Path) -> None:
    """What it builds from then on is of use to others."""
    first = start("a")
    answer(first)
    shutil.rmtree(store)
    store.mkdir()
    assert answer(first, STORE_RATE="3") == [5.0, 2, 2, 0]
    flushed(first)
    assert answer(start("b"), STORE_RATE="3") == [5.0, 0, 0, 1]


# the recipes of docs/store.md ---------------------------------------------------------------------

TRAIN = """
import json, os, sys, jaxd
step = jaxd.persistent_call(lambda x: x * 2)
value, found = float(step(1.0)), jaxd.statistics()
with open(os.environ["SAID"], "a") as said:
    said.write(json.dumps([value, found.traces, found.executable_loads]) + "\\n")
"""
SRUN = """#!/bin/sh
for node in 1 2; do
  XDG_RUNTIME_DIR=$HOME/$node XDG_CACHE_HOME=$HOME/$node/cache "$@" || exit 1
done
"""


@pytest.fixture
def job(runtime: Path) -> Callable[[str, Path], list[list[float]]]:
    """Runs a recipe in a folder, on machines without a cache; what its programs say."""
    folder = runtime / "bin"
    folder.mkdir()
    programs = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', "srun": SRUN}
    programs["jaxd"] = f'#!/bin/sh\nexec {sys.executable} -m jaxd.cli "$@"\n'
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)

    def run(title: str, home: Path) -> list[list[float]]:
        page = (ROOT / "docs" / "store.md").read_text()
        (recipe,) = re.findall(f"## {title}\n.*?```sh\n(.*?)```", page, re.DOTALL)
        for node in ("", "1", "2"):
            (home / node).mkdir(exist_ok=True, mode=0o700)
        (runtime / "train.py").write_text(TRAIN)
        said = home / "said"
        where = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "SAID": str(said)}
        where |= {"XDG_CACHE_HOME": str(home / "cache"), "XDG_CONFIG_HOME": str(home / "config")}
        environment = source_environment(home, **where, JAXD_STORE_KEY=KEY)
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        try:
            subprocess.run(["sh", "-ec", recipe], env=environment, cwd=runtime, check=True)
        finally:
            store = {"JAXD_STORE": str(home / "jaxd-store")}
            for node in ("", "1", "2"):
                place = {"XDG_RUNTIME_DIR": str(home / node)}
                for more in ({}, store):
                    stop = [sys.executable, "-m", "jaxd.cli", "stop"]
                    subprocess.run(stop, env=environment | place | more, check=False)
        return [json.loads(line) for line in said.read_text().splitlines()]

    return run


@pytest.mark.slow
def test_nodes_of_a_cluster(job: Callable[[str, Path], list[list[float]]], runtime: Path) -> None:
    """The second one loads what the first one has built."""
    assert job("On a cluster", runtime / "home") == [[2.0, 1, 0], [2.0, 0, 1]]


@pytest.mark.slow
def test_jobs_of_a_ci(job: Callable[[str, Path], list[list[float]]], runtime: Path) -> None:
    """Each with nothing but the file that the one before has left."""
    assert job("In a CI", runtime / "first") == [[2.0, 1, 0]]
    assert (runtime / "jaxd.tar").exists()
    assert job("In a CI", runtime / "second") == [[2.0, 0, 1]]


# at the same time --------------------------------------------------------------------------------


def call(server: LiveServer, gate: Gate) -> float:
    """Calls a function that stops at the gate where it is traced."""
    with connect(server.unix) as client:
        return float(client.persistent_call(stop_at(gate.path))(1.0))


def runs_a_call(server: LiveServer) -> bool:
    """Whether a call has come to a server, and has no answer."""
    with connect(server.unix) as client:
        return bool(client.caller.session.ask("statistics")["running_calls"])


@pytest.mark.slow
def test_servers_build_a_program_once_between_them(start: StartMember, gate: Gate) -> None:
    """The others wait for the one that is faster, and load what it has made."""
    servers = [start(name) for name in "abc"]
    with ThreadPoolExecutor(len(servers)) as threads:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            others = [threads.submit(call, server, gate) for server in servers[1:]]
            until(lambda: all(map(runs_a_call, servers[1:])))
        assert [each.result() for each in (first, *others)] == [2.0] * 3
    for server in servers[1:]:
        with connect(server.unix) as client:
            found = client.statistics()
        assert (found.traces, found.executable_loads) == (0, 1)


def call_back(server: LiveServer, port: int) -> float:
    """Calls a function whose program calls back into Python, and which is traced in company."""

    def meeting(x: Any) -> Any:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.recv(1)
        return jax.pure_callback(lambda value: value * 2, jax.typeof(x), x)

    with connect(server.unix) as client:
        return float(client.persistent_call(meeting)(jnp.float32(1)))


@pytest.mark.slow
def test_what_cannot_be_kept_is_not_waited_for(start: StartMember) -> None:
    """Once one server has found that out, the others build at the same time."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        listener.settimeout(30)
        port = listener.getsockname()[1]
        for names in ("a", "bc"):
            servers = [start(name, "--build-in", "worker") for name in names]
            calls = [threads.submit(call_back, server, port) for server in servers]
            for sock in [listener.accept()[0] for _ in servers]:
                sock.close()
            assert [each.result() for each in calls] == [2.0] * len(servers)
            for server in servers:
                flushed(server)


@pytest.mark.slow
def test_who_waits_can_be_cancelled(start: StartMember, gate: Gate) -> None:
    """The other server goes on."""
    servers = [start(name) for name in "ab"]
    with ThreadPoolExecutor(1) as threads, connect(servers[1].unix) as client:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            waiting = client.persistent_call(stop_at(gate.path)).submit(1.0)
            until(lambda: runs_a_call(servers[1]))
            assert waiting.cancel()
            until(lambda: not runs_a_call(servers[1]))
        assert first.result() == 2.0


def let_pass(gate: Gate, calls: list[Future[float]]) -> None:
    """Whoever traces what these call goes on, until all of them are answered."""
    while wait(calls, timeout=0.1).not_done:
        gate.let_pass()


def kill(server: LiveServer) -> None:
    """As the system does where memory is short."""
    os.kill(server.process.pid, signal.SIGKILL)
    os.kill(server.worker_pid(), signal.SIGKILL)


@pytest.mark.soak
def test_eight_servers_build_what_they_need_once_between_them(
    start: StartMember, gate: Gate, store: Path
) -> None:
    """But for what a server was killed in: another one builds it, ten seconds later."""
    servers = [start(str(number), "--session-grace-s", "0") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            others = [threads.submit(call, server, gate) for server in servers[1:]]
            until(lambda: all(map(runs_a_call, servers[1:])))
            kill(servers[0])
        let_pass(gate, [first, *others])
        assert isinstance(first.exception(), JaxdError)
        assert [each.result() for each in others] == [2.0] * 7
        found = list(threads.map(answer, servers[1:]))
    assert {value for value, *_ in found} == {2.0}
    assert [sum(each) for each in zip(*(counts for _, *counts in found), strict=True)] == [2, 2, 12]
    assert [path for path in store.rglob("leases/*") if path.is_file()] == []
