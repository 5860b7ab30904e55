"""A worker for each: what one has, and what happens to one, is nothing to the others.

Where root runs the tests, and others can run its Python, the workers are different users.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd import Client, connect, errors, watch
from jaxd.connection.control_client import send_request
from jaxd_protocol.network.accounts import add_account, remove_account
from tests.end_to_end.test_trust import CLIENTS, says, silent_crowd
from tests.live_server import ROOT, LiveServer, source_environment
from tests.server.staging import until

pytestmark = pytest.mark.own_server

FIRST_UID = 400_000 + 10 * (os.getpid() % 1000)  # no other run of these tests ends what is ours
VISITOR = "nobody"
X = np.ones(3, np.float32)
LARGE = np.arange(600_000, dtype=np.float32)


def anybody_can_run(path: str) -> bool:
    """Whether all on the way to a file may be entered and read by everybody."""
    real = Path(os.path.realpath(path))
    return all(os.stat(one).st_mode & 0o005 == 0o005 for one in (real, *real.parents))


IS_APART = os.geteuid() == 0 and anybody_can_run(sys.executable) and anybody_can_run(str(ROOT))
of_root = pytest.mark.skipif(
    not IS_APART, reason="takes root, and a Python and sources that others can read"
)


class Apart(LiveServer):
    """A server with a worker for each, ready when its gateway is open."""

    ready = "door_ready"


class House(NamedTuple):
    """Alice, Bob and the server's own user, each with a client.

    Attributes:
        server: where they are.
        alice: over TLS.
        bob: over TCP.
        owner: over the Unix socket.
        tokens: folder of the tokens.
    """

    server: Apart
    alice: Client
    bob: Client
    owner: Client
    tokens: str

    @property
    def control(self) -> str:
        """The control socket."""
        return self.server.unix.removeprefix("unix://") + ".control"

    def rows(self) -> dict[str, dict[str, Any]]:
        """What the operator sees of each worker."""
        status = send_request(self.control, {"ask": "status"})
        assert status is not None
        return {row["principal"]: row for row in status["workers"]}


def double(x: Any) -> Any:
    """Is called by everybody."""
    return x * 2


def alices_secret_step(x: Any) -> Any:
    """Is called by Alice alone."""
    return x * 0.123456


def pid_of(client: Client) -> int:
    """The process that serves it now."""
    return int(client.info()["pid"])


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """One server for all; when it has stopped, nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    folder.chmod(0o711)  # that of a socket which other users may reach
    tokens = f"{folder}/config/jaxd/tokens"
    alices, bobs = (add_account(name, tokens)[1] for name in ("alice", "bob"))
    server = Apart(
        folder,
        *("--worker-per-principal", "--allow-uid", VISITOR, "--cache-dir", f"{folder}/kept"),
        *("--worker-uids", f"{FIRST_UID}-{FIRST_UID + 9}" if IS_APART else "none"),
        JAXD_TEST_CANARY="canary-in-the-environment",
    )
    pids = set[int]()
    try:
        ways = ((server.tls, alices), (server.tcp, bobs), (server.unix, None))
        with ThreadPoolExecutor() as pool, ExitStack() as stack:
            coming = [pool.submit(connect, address, token=token) for address, token in ways]
            alice, bob, owner = (stack.enter_context(one.result()) for one in coming)
            yield House(server, alice, bob, owner, tokens)
            pids |= {line["pid"] for line in server.lines if line["event"] == "worker_started"}
    finally:
        assert server.close() == 0
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert [path for path in folder.rglob("*") if path.is_socket()] == []
    assert list(folder.glob("*.workers")) == []
    shutil.rmtree(folder)


def test_those_who_come_first_at_once_are_served_by_workers_of_their_own(house: House) -> None:
    """Each call waits for the worker of its caller; none is an error."""
    clients = (house.alice, house.bob, house.owner)
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda client: client.persistent_call(double)(X), clients)
    assert [one.tolist() for one in found] == [[2.0] * 3] * 3
    assert len({pid_of(client) for client in clients}) == 3
    rows = house.rows()
    assert {row["worker_pid"] for row in rows.values()} == {pid_of(client) for client in clients}
    assert {row["worker"]["traces"] for row in rows.values()} == {1}, "nothing is shared"


def test_large_arrays_travel_over_every_kind_of_line(house: House) -> None:
    """Passed on for TLS, to the worker itself for TCP, in shared memory for the Unix socket."""
    for client in (house.alice, house.bob, house.owner):
        there = client.put(LARGE)
        assert np.array_equal(np.asarray(client.persistent_call(double)(there)), LARGE * 2)
        assert np.array_equal(np.asarray(client.persistent_call(double)(LARGE)), LARGE * 2)


@pytest.mark.slow
def test_idle_clients_need_no_threads_of_their_workers(house: House) -> None:
    """However they came to them; what they send later is taken up."""
    clients = (house.alice, house.bob, house.owner)
    for client in clients:
        assert client.persistent_call(double)(X).tolist() == [2.0] * 3
    names = ("connections", "idle_connections")
    until(
        lambda: (
            [[row["worker"][name] for name in names] for row in house.rows().values()]
            == [[1, 1]] * len(clients)
        )
    )
    for client in clients:
        assert client.persistent_call(double)(X).tolist() == [2.0] * 3


@pytest.mark.soak
def test_the_end_of_one_worker_is_not_noticed_by_others(house: House) -> None:
    """Same process, same session, and what they hold is there."""
    kept = house.bob.put(X)
    before = house.bob.info()
    calls = house.rows()["account:bob"]["worker"]["calls"]
    alices = pid_of(house.alice)
    os.kill(alices, signal.SIGSEGV)
    assert house.alice.persistent_call(double)(X).tolist() == [2.0] * 3
    assert pid_of(house.alice) != alices
    after = house.bob.info()
    assert (after["pid"], after["session"]) == (before["pid"], before["session"])
    assert house.bob.persistent_call(double)(kept).tolist() == [2.0] * 3
    row = house.rows()["account:bob"]
    assert (row["epoch"], row["worker"]["calls"]) == (1, calls + 1)


def test_values_and_functions_of_one_are_not_there_for_another(house: House) -> None:
    """Not even as something that is refused: they are in another process."""
    house.alice.persistent_call(alices_secret_step)(X)
    house.alice.put(X, name="alices-values")
    with pytest.raises(errors.JaxdError, match="alices-values"):
        house.bob.named("alices-values")
    verbs: dict[str, tuple[Any, ...]]
    verbs = {"functions": (), "recent": (100,), "report": (), "statistics": (), "values": ()}
    verbs["view"] = (0, "")
    for verb, args in verbs.items():
        told = json.dumps(house.bob.caller.session.ask(verb, *args))
        assert "alices" not in told
        assert "account:alice" not in told
    mine = json.dumps(house.alice.caller.session.ask("functions"))
    assert "alices_secret_step" in mine, "everybody is the owner of a worker of one's own"


def test_what_is_kept_on_disk_is_apart(house: House) -> None:
    """In folders that nobody else can enter, each with its own programs only."""
    folder = Path(house.server.directory) / "kept" / "principals"
    folders = {path.name.rsplit("-", 1)[0]: path for path in folder.iterdir() if path.is_dir()}
    assert {"account-alice", "account-bob", f"uid-{os.getuid()}"} <= folders.keys()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders.values()} == {0o700}
    owners = {path.stat().st_uid for path in folders.values()}
    assert len(owners) == (len(folders) if IS_APART else 1)
    assert not (folder.parent / "v2").exists(), "there is nothing that all share"


def test_the_operator_sees_all_workers_and_others_their_own(house: House) -> None:
    """On the control socket, and with `jaxd status`."""
    text = subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", "status"],
        env=house.server.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "worker    alice: ready, process" in text
    assert f"worker    bob: ready, process {pid_of(house.bob)}" in text
    seen = house.bob.caller.session.ask("statistics")["principals"]
    assert [row["principal"] for row in seen] == ["account:bob"]


def test_the_operator_watches_all_workers_and_others_their_own(house: House) -> None:
    """On the control socket under the names of principals; through an address each its own."""
    house.alice.persistent_call(alices_secret_step)(X)
    house.bob.persistent_call(double)(X)
    with watch(house.server.unix, every_s=0.1) as seen:
        view = seen.view
        whose = {name.rpartition("/")[0] for name in view.workers}
        assert {"account:alice", "account:bob", f"uid:{os.getuid()}"} <= whose
        assert {row.principal for row in view.workers.values()} == whose
        names = {(key.partition("/")[0], row.name) for key, row in view.functions.items()}
        assert ("account:alice", "alices_secret_step") in names
        assert ("account:bob", "alices_secret_step") not in names
        counted = sum(row["worker"]["calls"] for row in house.rows().values())
        assert view.counters["calls"] == counted
    told = house.bob.caller.session.ask("view", 0, "")["view"]
    assert [row["principal"] for row in told["workers"].values()] == ["account:bob"]


def test_killing_the_gateway_costs_tls_clients_a_connection_and_no_more(house: House) -> None:
    """They come again by themselves, to the same worker, and their values are there."""
    kept, pid = house.alice.put(X), pid_of(house.alice)
    bobs = house.bob.info()
    status = send_request(house.control, {"ask": "status"})
    assert status is not None
    os.kill(status["host"]["door_pid"], 9)
    house.server.wait_for("door_ready", count=2)
    assert house.alice.persistent_call(double)(kept).tolist() == [2.0] * 3
    assert pid_of(house.alice) == pid
    assert house.bob.info() == bobs


@of_root
def test_workers_run_as_different_users(house: House) -> None:
    """Those of accounts as nobody else, that of a user as itself, and root's as root."""
    rows = house.rows()
    users = {name: _ids(row["worker_pid"]) for name, row in rows.items()}
    assert users["uid:0"][0] == {0}
    alice, bob = users["account:alice"], users["account:bob"]
    pool = set(range(FIRST_UID, FIRST_UID + 10))
    assert alice[0] < pool
    assert bob[0] < pool
    assert alice[0] != bob[0]
    for uids, gids, groups in (alice, bob):
        assert len(uids) == len(gids) == 1
        assert uids == gids
        assert groups == set()


@of_root
def test_a_user_of_the_machine_gets_a_worker_as_itself(house: House) -> None:
    """It comes over the Unix socket, and what runs there may do what that user may."""
    program = (
        "import os, numpy as np, jaxd\n"
        "with jaxd.connect(os.environ['JAXD_SERVER']) as client:\n"
        "    client.persistent_call(lambda x: x * 2)(np.ones(3))\n"
        "    print(client.info()['pid'], open(f'/proc/{client.info()[\"pid\"]}/environ').read())\n"
    )
    environment = source_environment(Path(house.server.directory), JAXD_SERVER=house.server.unix)
    del environment["XDG_RUNTIME_DIR"], environment["XDG_CONFIG_HOME"]
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment | {"HOME": "/", "JAXD_AUTOSTART": "0"},
        user=VISITOR,
        group="nogroup",
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    pid, _, told = found.stdout.partition(" ")
    uid = os.stat(f"/proc/{pid}").st_uid
    assert house.rows()[f"uid:{uid}"]["worker_pid"] == int(pid)
    assert house.rows()[f"uid:{uid}"]["user"] == VISITOR
    assert "canary" not in told


def attempts(x: Any, paths: Any, sockets: Any) -> Any:
    """What code of a client can get at, where it is traced."""
    got = []
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                with open(path, "rb") as file:
                    file.read(1)
            got.append(path)
        except OSError:
            pass
    for path in sockets:
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
            got.append(path)
        except OSError:
            pass
    if got:
        raise ValueError(f"got at {got} of {len(paths) + len(sockets)}")
    raise LookupError(f"nothing of {len(paths) + len(sockets)}")


@of_root
@pytest.mark.filterwarnings("ignore::jaxd.errors.TracedReadWarning")
def test_code_of_one_gets_at_nothing_of_another(house: House) -> None:
    """Neither files nor memory nor sockets: of other workers, the gateway, or the host."""
    server, rows = house.server, house.rows()
    status = send_request(house.control, {"ask": "status"})
    assert status is not None
    others = [row["worker_pid"] for name, row in rows.items() if name != "account:alice"]
    others += [status["host"]["pid"], status["host"]["door_pid"]]
    files = [f"/proc/{pid}/{name}" for pid in others for name in ("mem", "environ", "fd", "maps")]
    kept = Path(server.directory) / "kept" / "principals"
    files += [str(path) for path in kept.iterdir() if not path.name.startswith("account-alice")]
    files += [f"{server.directory}/s.token", house.tokens]
    files += [str(path) for path in (Path(server.directory) / "config" / "jaxd").iterdir()]
    folder = Path(server.directory) / "s.sock.workers"
    sockets = [house.control, *map(str, folder.iterdir())]
    assert len(files) > 20
    assert len(sockets) > 3
    places = (X, tuple(files), tuple(sockets))
    with pytest.raises(LookupError, match="nothing of"):
        house.alice.persistent_call(attempts, static_argnums=(1, 2))(*places)
    with pytest.raises(ValueError, match=f"of {len(files) + len(sockets)}"):  # it is all there
        house.owner.persistent_call(attempts, static_argnums=(1, 2))(*places)


@of_root
def test_a_worker_holds_nothing_that_is_not_its_own(house: House) -> None:
    """Of open files, its memory, pipes and sockets; of the environment, what jax needs."""
    pid = house.rows()["account:alice"]["worker_pid"]
    names = {os.readlink(f"/proc/{pid}/fd/{one}") for one in os.listdir(f"/proc/{pid}/fd")}
    kinds = ("/dev/null", "/memfd:jaxd", "pipe:", "socket:", "anon_inode:", f"/proc/{pid}/")
    assert [name for name in names if not name.startswith(kinds)] == []
    shown = Path(f"/proc/{pid}/cmdline").read_text()
    assert "alice" not in shown  # all users can read it
    told = Path(f"/proc/{pid}/environ").read_text() + shown
    for secret in ("canary", "s.token", "tls.pem", "JAXD_TOKEN", "XDG_CONFIG_HOME"):
        assert secret not in told
    assert "JAX_PLATFORMS=cpu" in told


LIES = (
    b'{"event": "wanted", "id": 1, "principal": "account:bob", "token": null}\n',
    b'{"event": "accounts", "valid": {}}\n',
    b'{"answer": 1, "status": {"calls": "x", "running": [["a"]], "idle_s": "q"}}\n',
    b'{"event": 7}\n[1]\n',
)


def lies(x: Any) -> Any:
    """Says to everybody at the other end of a socket what only a gateway may say, and nonsense."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            copy = os.dup(int(name))
            with socket.socket(fileno=copy) as sock:
                sock.setblocking(False)
                sock.send(b"".join(LIES))
    return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxd.errors.TracedReadWarning")
def test_what_a_worker_says_is_believed_of_itself_only(house: House) -> None:
    """Code of its client may have made it say that; it loses its own worker by it."""
    bobs, alices = house.bob.info(), pid_of(house.alice)
    with pytest.raises(errors.JaxdError):
        house.alice.persistent_call(lies)(X)
    assert house.alice.persistent_call(double)(X).tolist() == [2.0] * 3
    until(lambda: pid_of(house.alice) != alices)
    assert house.bob.info() == bobs
    rows = house.rows()
    assert rows["account:bob"]["worker_state"] == "ready"
    assert rows["account:bob"]["epoch"] == 1


def _ids(pid: int) -> tuple[set[int], set[int], set[int]]:
    """Users, groups and further groups of a process."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    uids, gids, groups = (set(map(int, lines[name].split())) for name in ("Uid", "Gid", "Groups"))
    return uids, gids, groups


def leaves_a_process_behind(x: Any) -> Any:
    """Which is in no group of the worker's."""
    ctypes.CDLL(None).system(b"setsid sleep 600 &")
    return x


def _processes_of(uid: int) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                found.append(Path(f"/proc/{name}/cmdline").read_text())
    return found


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_silent_connections_do_not_shut_the_gateway(house: House, scheme: str) -> None:
    """Who proves a token gets in, from the same address as well."""
    address = getattr(house.server, scheme)
    token = Path(house.tokens, "bob").read_text().strip()
    with silent_crowd(address, says(b"")):
        for _ in range(CLIENTS):
            with connect(address, token=token) as client:
                assert pid_of(client) == pid_of(house.bob)


@pytest.mark.slow
def test_a_token_that_was_rewritten_in_place_ends_its_worker(house: House) -> None:
    """With the length and the time that its file had: the gateway looks at more than that."""
    pid, alices = pid_of(house.bob), house.alice.info()
    path = Path(house.tokens, "bob")
    text, status = path.read_text(), path.stat()
    try:
        with path.open("r+") as file:
            file.write(text.strip()[::-1])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        house.server.wait_for("worker_exited", pid=pid)
        with pytest.raises(errors.AuthenticationFailed):
            house.bob.info()
    finally:
        path.write_text(text)
    assert pid_of(house.bob) != pid
    assert house.alice.info() == alices


def test_a_revoked_account_loses_its_worker_at_once(house: House) -> None:
    """With all that is in it, and what it has started; the others go on."""
    if IS_APART:
        house.alice.persistent_call(leaves_a_process_behind)(X)
    pid, bobs = pid_of(house.alice), house.bob.info()
    uid = os.stat(f"/proc/{pid}").st_uid
    assert not IS_APART or "sleep" in str(_processes_of(uid))
    remove_account("alice", house.tokens)
    house.server.wait_for("worker_exited", pid=pid)
    assert not os.path.exists(f"/proc/{pid}")
    if IS_APART:
        until(lambda: _processes_of(uid) == [])
        kept = Path(house.server.directory) / "kept" / "principals"
        until(lambda: list(kept.glob("account-alice-*")) == [])
    with pytest.raises(errors.AuthenticationFailed):
        house.alice.persistent_call(double)(X)
    assert house.bob.info() == bobs


stopping: list[LiveServer] = []


def stops_the_server(x: Any) -> Any:
    """Is called back while a call runs."""
    server = stopping.pop()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining")
    return x


def calls_back(x: Any) -> Any:
    """Waits for its client in the middle."""
    return io_callback(stops_the_server, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1


@pytest.mark.slow
def test_a_call_that_runs_when_the_server_stops_is_finished(house: House) -> None:
    """Over the gateway's own line as well: that goes when the last word was said."""
    token = Path(house.tokens, "bob").read_text().strip()
    with connect(house.server.tls, token=token) as client:
        step = client.persistent_call(calls_back)
        stopping.append(house.server)
        assert step(X).tolist() == [2.0] * 3
    assert house.server.process.wait(30) == 0
