"""A pool on a Ray cluster of a head and two simulated nodes: what dies, and what goes on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import jax
import numpy as np
import pytest

import jaxd
from jaxd.cli.query import ask_server
from jaxd_protocol.messages.pool_view import POOL_ORDER
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.live_server import run_client, source_environment
from tests.ray_nodes import Namespace, RayNodes, namespace_needed
from tests.server.host_process import ask

pytestmark = [pytest.mark.slow, pytest.mark.own_server, pytest.mark.timeout(240)]

_PATIENCE_S = 90.0
_NODE_DEATH_S = 3.0
"""Within so long the death of a machine is seen: in one of two cases, as others use this one."""

_LOOK_S = 0.05
_PORT = 18861
"""In a namespace of its own; that of a director is still that of the next one."""

Members = dict[str, dict[str, Any]]


class RayPool:
    """The commands of a pool, in the namespace of its cluster.

    Attributes:
        folder: of all files.
        environment: of all processes.
        name: of the pool.
        socket: of the director.
        line: for clients, as `up` has printed it last.
    """

    def __init__(
        self,
        namespace: Namespace,
        folder: Path,
        environment: dict[str, str],
        name: str = "lab",
    ) -> None:
        self._namespace = namespace
        self.name = name
        self.folder = folder
        self.environment = environment
        self._files = folder / f"jaxd/pool-{name}"
        self.socket = Address.unix(f"{self._files}/director.sock")
        self.line = ""

    def write(self, text: str) -> str:
        """The path of a pool.toml."""
        path = self.folder / f"{self.name}.toml"
        path.write_text(text)
        return str(path)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`jaxd pool WORDS`."""
        return subprocess.run(
            [*self._namespace.command, sys.executable, "-P", "-m", "jaxd.cli", "pool", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def order(self, *words: str) -> str:
        """What such a command prints, which has to succeed."""
        done = self.run(*words)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{self.log()}"
        said = done.stdout
        self.line = next((e for e in said.splitlines() if "JAXD_SERVER=" in e), self.line)
        return said

    def log(self) -> str:
        """What the director has logged."""
        with suppress(FileNotFoundError):
            return (self._files / "director.log").read_text()
        return ""

    def status(self) -> dict[str, Any]:
        """`jaxd pool status --json`, without a process for it."""
        return dict(ask_server(str(self.socket), POOL_ORDER, "status", "{}"))

    def members(self) -> Members:
        """The members by name."""
        return {each["name"]: each for each in self.status()["members"]}

    def wait_for(self, fits: Callable[[Members], bool]) -> float:
        """Returns once the members are so; the seconds until then."""
        began = time.monotonic()
        found: Members = {}
        while time.monotonic() - began < _PATIENCE_S:
            with suppress(jaxd.errors.NoServer, jaxd.errors.ConnectionLost):
                found = self.members()
                if fits(found):
                    return time.monotonic() - began
            time.sleep(_LOOK_S)
        raise AssertionError(f"{json.dumps(found, indent=1)}\n{self.log()}")

    def unix_of(self, name: str) -> str:
        """The address of a member on this machine."""
        return str(self.members()[name]["addresses"][0])

    def host_pid(self, name: str) -> int:
        """The process of a member's server."""
        control = control_path(Address.parse(self.unix_of(name)))
        return int(ask(control, ask="status")["host"]["pid"])

    def client(self, program: str, address: str) -> subprocess.CompletedProcess[str]:
        """Runs a client program in the namespace."""
        return subprocess.run(
            [*self._namespace.command, sys.executable, "-c", program],
            env=self.environment | {"JAXD_SERVER": address},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def loop(self) -> Loop:
        """A client of the pool, by the line that `up` has printed."""
        told = dict(word.split("=", 1) for word in shlex.split(self.line)[1:])
        command = [*self._namespace.command, sys.executable, "-c", LOOP]
        return Loop(command, self.environment | told)


class Loop:
    """A client process that calls without end; `close` it.

    Each answer is compared with what it has to be, there.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go_on(self) -> None:
        """Returns after ten further steps, all of them right."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("on", file=self._process.stdin, flush=True)
        said = ""
        for line in self._process.stdout:
            if line == "right\n":
                return
            said += line
        raise AssertionError(said)

    def close(self) -> None:
        """Ends it."""
        out, _ = self._process.communicate()
        assert self._process.returncode == 0, out


LOOP = """
import sys
import threading

import numpy as np
from jaxd import persistent_call

@persistent_call(donate_argnums=0)
def step(state, x):
    return state * 0.5 + x, state.sum()

@persistent_call
def square(x):
    return x * x

asked = threading.Semaphore(0)

def read():
    for _ in sys.stdin:
        asked.release()
    ended.set()

ended = threading.Event()
threading.Thread(target=read, daemon=True).start()
number, state = 0, np.zeros(1 << 16, "f4")
expected = state
while not ended.is_set():
    for _ in range(10):
        number = (number + 1) % 1000
        assert float(square(float(number))) == number * number, number
        state, _ = step(state, np.float32(number))
        expected = expected * np.float32(0.5) + np.float32(number)
    np.testing.assert_array_equal(np.asarray(state), expected)
    if asked.acquire(blocking=False):
        print("right", flush=True)
    ended.wait(0.1)
"""


def _states(members: Members) -> list[str]:
    return sorted(each["state"] for each in members.values())


def _both_ready(members: Members) -> bool:
    return _states(members) == ["ready", "ready"]


def _has_names_alone(name: str, members: Members) -> bool:
    return bool(members[name]["values"] == members[name]["named"] > 0)


def _known(status: dict[str, Any]) -> dict[str, tuple[int, list[str]]]:
    return {each["name"]: (each["epoch"], each["addresses"]) for each in status["members"]}


def _stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return _stat_of(pid)[0] not in "ZX"
    return False


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    """With only `lo`."""
    found = namespace_needed()
    yield found
    found.close()


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Of all processes: folders of their own, and Ray's token."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    token = folder / "ray.token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-ray-for-tests-only")
    yield source_environment(
        folder,
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(token),
        RAY_USAGE_STATS_ENABLED="0",
        HOME=str(folder),
    )
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def nodes(namespace: Namespace, environment: dict[str, str]) -> Iterator[RayNodes]:
    """A head and two nodes with room for one member each."""
    with RayNodes(namespace, environment, 1, 1) as found:
        yield found


def _settings(nodes: RayNodes, folder: Path, pool: str = "lab", **members: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in members.items()]
    return "\n".join(
        [
            f'name = "{pool}"',
            f'listen = "tls://127.0.0.1:{_PORT if pool == "lab" else 0}"',
            "[ray]",
            f'address = "{nodes.address}"',
            'node_address = "127.0.0.1"',
            "[members]",
            f'store = "{folder}/store"',
            *lines,
        ]
    )


@pytest.fixture(scope="module")
def pool(namespace: Namespace, environment: dict[str, str], nodes: RayNodes) -> Iterator[RayPool]:
    """With two members, one on each node."""
    folder = Path(environment["XDG_RUNTIME_DIR"])
    found = RayPool(namespace, folder, environment)
    said = found.order("up", found.write(_settings(nodes, folder, count=2, max=4)))
    assert "export JAXD_SERVER='pool://127.0.0.1:" in said
    yield found
    assert "is down" in found.order("down", "--force", "--pool", "lab")


PROGRAM = """
import numpy as np
from jaxd import persistent_call

@persistent_call
def weigh(x):
    return (x * {factor}).sum()

print(float(weigh(np.arange(8, dtype="f4"))))
"""


def test_members_are_ready_one_on_each_node(pool: RayPool) -> None:
    """With a Unix socket for this machine, and TLS with a pin for others."""
    members = pool.members()
    assert _states(members) == ["ready", "ready"]
    for each in members.values():
        unix, tls = map(Address.parse, each["addresses"])
        assert (unix.kind, tls.kind, len(tls.pin)) == ("unix", "tls", 64)
        assert (each["devices"], each["epoch"]) == (1, 1)
    text = pool.order("status", "--pool", "lab")
    assert text.startswith("pool lab: 2 ready, 0 lost, 0 draining, 2 wanted")


def test_calls_are_answered_over_tls_and_over_the_unix_socket(pool: RayPool) -> None:
    """By the member itself, which authenticates the client; the director is not in between."""
    for address in pool.members()["m1"]["addresses"]:
        done = pool.client(PROGRAM.format(factor=2), address)
        assert done.stdout.startswith("56.0\n"), done.stderr


def test_what_one_member_has_compiled_the_others_load(pool: RayPool) -> None:
    """One trace and compile for both: they share a store, and nodes have caches of their own."""
    counts = []
    for name in ("m1", "m2"):
        with jaxd.connect(pool.unix_of(name)) as client:
            before = client.statistics()
            server = {"JAXD_SERVER": pool.unix_of(name)}
            done = run_client(PROGRAM.format(factor=3), environment=pool.environment | server)
            assert done.stdout.startswith("84.0\n"), done.stderr
            after = client.statistics()
        counts.append((after.traces - before.traces, after.compiles - before.compiles))
    assert counts == [(1, 1), (0, 0)]


def test_a_poisoned_entry_of_the_store_is_refused(pool: RayPool) -> None:
    """What is not signed with the pool's key is not loaded: the other member builds by itself."""
    store, program = pool.folder / "store", PROGRAM.format(factor=5)
    before = set(store.rglob("*"))
    first, second = (pool.environment | {"JAXD_SERVER": pool.unix_of(m)} for m in ("m1", "m2"))
    run_client(program, environment=first)

    def written() -> list[Path]:
        found = [each for each in set(store.rglob("*")) - before if each.is_file()]
        return [each for each in found if "programs" in each.parts]

    until = time.monotonic() + _PATIENCE_S
    while not written() and time.monotonic() < until:
        time.sleep(_LOOK_S)
    for record in written():
        data = bytearray(record.read_bytes())
        data[-1] ^= 1
        record.write_bytes(data)
    with jaxd.connect(second["JAXD_SERVER"]) as client:
        counted = client.statistics()
        done = run_client(program, environment=second)
        assert done.stdout.startswith("140.0\n"), done.stderr
        assert client.statistics().compiles == counted.compiles + 1
    assert "store_entry_refused" in (pool.folder / "jaxd/pool-lab/m2/server.log").read_text()


def test_a_member_whose_server_dies_comes_back_as_another_epoch(pool: RayPool) -> None:
    """Its actor ends with it, and Ray starts another one."""
    os.kill(pool.host_pid("m1"), SIGKILL)
    pool.wait_for(lambda found: found["m1"]["state"] == "lost")
    pool.wait_for(lambda found: found["m1"]["epoch"] == 2 and _both_ready(found))


def test_a_member_whose_actor_dies_leaves_no_server(pool: RayPool) -> None:
    """Neither the host nor the worker goes on."""
    status = ask(control_path(Address.parse(pool.unix_of("m2"))), ask="status")
    pids = [int(status["host"]["pid"]), int(status["host"]["worker_pid"])]
    epoch = pool.members()["m2"]["epoch"]
    os.kill(int(_stat_of(pids[0])[1]), SIGKILL)
    pool.wait_for(lambda found: found["m2"]["epoch"] == epoch + 1 and _both_ready(found))
    assert [pid for pid in pids if _is_alive(pid)] == []


def test_a_director_that_dies_is_replaced_and_clients_go_on(pool: RayPool) -> None:
    """Values stay where they are; the next director knows members, epochs and what they hold."""
    before = pool.status()
    with jaxd.connect(pool.unix_of("m1")) as client:
        value = client.put(np.arange(4, dtype="f4"))
        os.kill(before["pid"], SIGKILL)
        assert client.get(value).sum() == 6.0
        pool.order("up", str(pool.folder / "lab.toml"))
        after = pool.status()
        assert after["epoch"] == before["epoch"] + 1
        assert _known(after) == _known(before)
        pool.wait_for(lambda found: found["m1"]["values"] == 1)
        refused = pool.run("down", "--pool", "lab")
        assert refused.returncode == 1
        assert "arrays of clients would be lost with m1" in refused.stderr
        assert client.get(value).sum() == 6.0
        del value
        client.statistics()  # which takes along that the value is not needed
        pool.wait_for(lambda found: found["m1"]["values"] == 0)


def test_a_drained_member_ends_and_another_takes_its_place(pool: RayPool) -> None:
    """On the node that it had."""
    pid = pool.host_pid("m2")
    assert "m2 is gone" in pool.order("drain", "m2", "--pool", "lab")
    assert not _is_alive(pid)
    pool.wait_for(lambda found: set(found) == {"m1", "m3"} and _both_ready(found))


def test_a_pool_is_scaled_down_and_up(pool: RayPool) -> None:
    """The command says how it is then; what leaves is ended, and what comes gets ready."""
    assert "1 wanted" in pool.order("scale", "1", "--pool", "lab")
    pool.wait_for(lambda found: _states(found) == ["ready"])
    (left,) = pool.members()
    assert "2 wanted" in pool.order("scale", "2", "--pool", "lab")
    pool.wait_for(lambda found: left in found and len(found) == 2 and _both_ready(found))


def test_a_client_of_the_pool_goes_on_through_all_of_it(pool: RayPool, nodes: RayNodes) -> None:
    """The director is killed, the member with its state is drained, and then a machine dies."""

    def holder() -> str:
        pool.wait_for(lambda found: any(each["values"] for each in found.values()))
        members = pool.members()
        return max(members, key=lambda name: members[name]["values"])

    loop = pool.loop()
    try:
        loop.go_on()
        os.kill(pool.status()["pid"], SIGKILL)
        loop.go_on()
        pool.order("up", str(pool.folder / "lab.toml"))
        loop.go_on()
        left = holder()
        assert f"{left} is gone" in pool.order("drain", left, "--pool", "lab")
        loop.go_on()
        pool.wait_for(_both_ready)
        nodes.kill(0)
        for _ in range(3):
            loop.go_on()
        nodes.add(1)
        pool.wait_for(_both_ready)
        loop.go_on()
    finally:
        loop.close()


def test_the_death_of_a_node_is_noticed(pool: RayPool, nodes: RayNodes) -> None:
    """Its member is lost, and comes back where there is room, as another epoch."""
    seconds: list[float] = []
    killed = 1
    while not seconds or (len(seconds) < 2 and seconds[0] >= _NODE_DEATH_S):
        epochs = {name: each["epoch"] for name, each in pool.members().items()}
        nodes.kill(killed)
        seconds.append(pool.wait_for(lambda found: "lost" in _states(found)))
        killed = nodes.add(1)
        pool.wait_for(_both_ready)
        after = {name: each["epoch"] for name, each in pool.members().items()}
        assert sum(after.values()) == sum(epochs.values()) + 1
    print(f"noticed after {seconds} s")
    assert min(seconds) < _NODE_DEATH_S


def test_two_versions_serve_side_by_side(pool: RayPool, nodes: RayNodes) -> None:
    """`jaxd pool up` with another version: old members are left once new ones are ready."""
    for name in pool.members():  # which stay until what is under this is forgotten
        with jaxd.connect(pool.unix_of(name)) as client:
            client.put(np.ones(3, "f4"), name="kept").delete()
            pool.wait_for(partial(_has_names_alone, name))
    old = set(pool.members())
    nodes.add(1)
    text = _settings(nodes, pool.folder, count=2, max=4, version="next")
    assert "takes over" in pool.order("up", pool.write(text), "--no-wait")

    def versions(found: Members) -> set[str]:
        return {each["version"] for each in found.values() if each["state"] == "ready"}

    both = ["draining", "ready", "ready", "starting"]
    pool.wait_for(lambda found: len(versions(found)) == 2 and _states(found) == both)
    with jaxd.connect(f"pool+{pool.socket}") as client:
        double = client.persistent_call(lambda x: 2 * x)
        ready = [name for name, each in pool.members().items() if each["state"] == "ready"]
        assert len(old.intersection(ready)) == 1
        for name in ready:
            assert double.on(member=name)(3.0) == 6.0
        assert client.forget("kept")
    pool.wait_for(lambda found: _both_ready(found) and versions(found) == {"next"})


def test_members_without_a_store_take_programs_from_each_other(
    pool: RayPool, nodes: RayNodes
) -> None:
    """The director tells each who is in the pool; nodes have cache folders of their own."""
    nodes.add(2)
    text = _settings(nodes, pool.folder, count=2, max=4, version="peers")
    text = text.replace(f'store = "{pool.folder}/store"', 'store = "none"')
    pool.order("up", pool.write(text), "--no-wait")
    pool.wait_for(
        lambda found: _both_ready(found) and {e["version"] for e in found.values()} == {"peers"}
    )
    names = sorted(pool.members())

    def know_each_other() -> bool:
        files = [pool.folder / f"jaxd/pool-lab/{name}/members.json" for name in names]
        with suppress(FileNotFoundError):
            known = [json.loads(file.read_text())["addresses"] for file in files]
            return all(set(names) <= each.keys() for each in known)
        return False

    pool.wait_for(lambda _: know_each_other())
    counts = []
    for name in names:
        with jaxd.connect(pool.unix_of(name)) as client:
            before = client.statistics()
            server = {"JAXD_SERVER": pool.unix_of(name)}
            done = run_client(PROGRAM.format(factor=7), environment=pool.environment | server)
            assert done.stdout.startswith("196.0\n"), done.stderr
            after = client.statistics()
        counts.append((after.traces - before.traces, after.compiles - before.compiles))
    assert counts == [(1, 1), (0, 0)]


def test_a_wrong_token_of_ray_lets_nobody_in(
    namespace: Namespace, nodes: RayNodes, environment: dict[str, str], runtime: Path
) -> None:
    """The error names the token."""
    token = runtime / "wrong.token"
    token.touch(mode=0o600)
    token.write_text("another-token-of-ray-for-tests")
    text = _settings(nodes, runtime).replace("[members]", f'token_file = "{token}"\n[members]')
    own = source_environment(runtime, HOME=str(runtime))
    found = RayPool(namespace, runtime, environment | own)
    done = found.run("up", found.write(text))
    assert done.returncode == 1
    assert "RAY_AUTH_TOKEN_PATH" in done.stderr


def test_a_cluster_that_asks_for_no_token_is_not_used(
    namespace: Namespace, environment: dict[str, str], runtime: Path
) -> None:
    """The error says how to start it."""
    own = {name: value for name, value in environment.items() if name != "RAY_AUTH_TOKEN_PATH"}
    with RayNodes(namespace, own | {"RAY_AUTH_MODE": "disabled"}) as open_to_all:
        own = source_environment(runtime, HOME=str(runtime))
        found = RayPool(namespace, runtime, environment | own)
        done = found.run("up", found.write(_settings(open_to_all, runtime)))
    assert done.returncode == 1
    assert "lets in who has no token" in done.stderr
    assert "RAY_AUTH_MODE=token" in done.stderr


def test_each_member_gets_gpus_of_its_own(
    namespace: Namespace, nodes: RayNodes, environment: dict[str, str]
) -> None:
    """Of a node that says that it has two: Ray tells the actors, and they their servers."""
    nodes.add(2, 2)
    folder = Path(environment["XDG_RUNTIME_DIR"])
    found = RayPool(namespace, folder, environment, "gpus")
    text = _settings(nodes, folder, "gpus", count=2, max=2, platform="gpu")
    found.order("up", found.write(f'{text}\nenvironment = {{ JAX_PLATFORMS = "cpu" }}'))
    seen = []
    for name in found.members():
        variables = Path(f"/proc/{found.host_pid(name)}/environ").read_text().split("\0")
        seen += [each for each in variables if each.startswith("CUDA_VISIBLE_DEVICES=")]
    assert sorted(seen) == ["CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"]
    assert "is down" in found.order("down", "--pool", "gpus")


ENTERING = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, 5)
print("in")
"""


def _processes_of(folder: str, program: str) -> list[int]:
    """Those of a program of Ray that has the files of a cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if any(folder in word for word in words) and any(w.endswith(program) for w in words):
                found.append(int(path.parent.name))
    return found


def _listens(pid: int) -> bool:
    """Whether a process listens on a port."""
    links = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()]
    own = {str(each)[8:-1] for each in links if str(each).startswith("socket:[")}
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return any(row[3] == "0A" and row[9] in own for row in rows)


def test_a_cluster_on_this_machine_is_started_and_ended(
    namespace: Namespace, runtime: Path
) -> None:
    """Without an address there is one of the pool's own, which ends with the pool.

    It lets in who has its token, and has no dashboard: what Ray starts in its place serves nothing.
    """
    found = RayPool(namespace, runtime, source_environment(runtime, HOME=str(runtime)))
    text = (
        'name = "lab"\nlisten = "tls://127.0.0.1:0"\n[ray]\nnode_address = "127.0.0.1"\ncpus = 2\n'
        "[members]\ndevices = 2"
    )
    found.order("up", found.write(text))
    assert _states(found.members()) == ["ready"]
    assert found.members()["m1"]["devices"] == 2
    with jaxd.connect(found.unix_of("m1")) as client:
        assert client.persistent_call(jax.device_count)() == 2
        assert len(client.devices()) == 2
    cluster = json.loads((runtime / "jaxd/pool-lab/cluster.json").read_text())
    token = str(runtime / "jaxd/pool-lab/ray.token")
    for own, enters in (
        ({"RAY_AUTH_MODE": "disabled"}, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another-token-for-tests"}, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}, True),
    ):
        words = [*namespace.command, sys.executable, "-c", ENTERING, cluster["address"]]
        environment = {**found.environment, **own}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout == "in\n") is enters, done.stderr
        assert ("AuthenticationError" in done.stderr) is not enters
    (raylet,) = _processes_of(cluster["folder"], "raylet/raylet")
    assert "RAY_AUTH_MODE=token" in Path(f"/proc/{raylet}/environ").read_text().split("\0")
    assert not any(map(_listens, _processes_of(cluster["folder"], "dashboard/dashboard.py")))
    pid = found.host_pid("m1")
    assert "is down" in found.order("down", "--pool", "lab")
    assert not _is_alive(pid)
    assert not _is_alive(cluster["pid"])
    assert not (runtime / "jaxd/pool-lab/cluster.json").exists()
    assert not Path(cluster["folder"]).exists()
