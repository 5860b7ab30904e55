"""Servers that share a store: what one of them has built, the others load."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxd import connect
from jaxd.errors import JaxdError
from tests.end_to_end.gates import Gate, stop_at, wait_until
from tests.live_server import LiveServer

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
        given |= {"JAXD_CACHE_DIR": str(runtime / f"cache-{name}")}
        return start_live(*arguments, name=name, **given | variables)

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


def test_what_one_server_has_built_another_loads(start: StartMember) -> None:
    """Without a trace, also of what it reads of its client's process; another value is built."""
    first = start("a")
    assert answer(first) == [2.0, 1, 1, 0]
    flushed(first)
    second = start("b")
    assert answer(second) == [2.0, 0, 0, 1]
    assert answer(second, STORE_RATE="3") == [5.0, 1, 1, 1]


def test_what_was_kept_before_there_was_a_store_is_shared(start: StartMember) -> None:
    """Once it is used."""
    alone = start("a", JAXD_STORE="")
    assert answer(alone) == [2.0, 1, 1, 0]
    flushed(alone)
    first = start("a")
    assert answer(first) == [2.0, 0, 0, 1]
    flushed(first)
    assert answer(start("b")) == [2.0, 0, 0, 1]


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


def test_a_key_that_can_be_guessed_is_refused(start: StartMember, store: Path) -> None:
    """The server works without the store, and says so."""
    server = start("a", JAXD_STORE_KEY="secret")
    (line,) = [line for line in server.lines if line["event"] == "store_refused"]
    assert "JAXD_STORE_KEY can be guessed" in line["reason"]
    assert answer(server) == [2.0, 1, 1, 0]
    flushed(server)
    assert files(store) == {}


def test_without_a_key_the_user_has_one(start: StartMember, runtime: Path) -> None:
    """A file that the first server makes, and the others find."""
    first = start("a", JAXD_STORE_KEY="")
    answer(first)
    flushed(first)
    assert (runtime / "config" / "jaxd" / "store.key").stat().st_mode & 0o777 == 0o600
    assert answer(start("b", JAXD_STORE_KEY="")) == [2.0, 0, 0, 1]


# at the same time --------------------------------------------------------------------------------


def call(server: LiveServer, gate: Gate) -> float:
    """Calls a function that stops at the gate where it is traced."""
    with connect(server.unix) as client:
        return float(client.persistent_call(stop_at(gate.path))(1.0))


def runs_a_call(server: LiveServer) -> bool:
    """Whether a call has come to a server, and has no answer."""
    with connect(server.unix) as client:
        return bool(client.caller.session.ask("statistics")["running_calls"])


def test_servers_build_a_program_once_between_them(start: StartMember, gate: Gate) -> None:
    """The others wait for the one that is faster, and load what it has made."""
    servers = [start(name) for name in "abc"]
    with ThreadPoolExecutor(len(servers)) as threads:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            others = [threads.submit(call, server, gate) for server in servers[1:]]
            wait_until(lambda: all(map(runs_a_call, servers[1:])))
        assert [each.result() for each in (first, *others)] == [2.0] * 3
    for server in servers[1:]:
        with connect(server.unix) as client:
            found = client.statistics()
        assert (found.traces, found.executable_loads) == (0, 1)


def test_who_waits_can_be_cancelled(start: StartMember, gate: Gate) -> None:
    """The other server goes on."""
    servers = [start(name) for name in "ab"]
    with ThreadPoolExecutor(1) as threads, connect(servers[1].unix) as client:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            waiting = client.persistent_call(stop_at(gate.path)).submit(1.0)
            wait_until(lambda: runs_a_call(servers[1]))
            assert waiting.cancel()
            wait_until(lambda: not runs_a_call(servers[1]))
        assert first.result() == 2.0


def test_a_server_that_is_killed_leaves_its_build_to_another(
    start: StartMember, gate: Gate
) -> None:
    """Once nobody has touched its lease for ten seconds."""
    servers = [start(name, "--session-grace-s", "0") for name in "ab"]  # no client waits for one
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(call, servers[0], gate)
        with gate.reached():
            other = threads.submit(call, servers[1], gate)
            wait_until(lambda: runs_a_call(servers[1]))
            os.kill(servers[0].process.pid, signal.SIGKILL)
            os.kill(servers[0].worker_pid(), signal.SIGKILL)
        with pytest.raises(JaxdError):
            first.result()
        with gate.reached():
            pass
        assert other.result() == 2.0
    with connect(servers[1].unix) as client:
        assert client.statistics().traces == 1
