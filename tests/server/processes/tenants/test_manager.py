"""A host with a gateway and fake workers: who gets which, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import pytest

from jaxd_protocol.errors import (
    Busy,
    ConfigurationError,
    ServerStartFailed,
)
from jaxd_protocol.network.accounts import add_account, remove_account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import UNIX, ChannelBinding, handshake_with_server
from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision import supervisor
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.tenants.directory import TenantCleanup, TenantDirectory
from jaxd_server.processes.tenants.manager import FailedStarts, TenantManager, TenantWorker
from tests.server.host_process import HostProcess, ask
from tests.server.processes.supervision.test_quarantine import entry
from tests.server.staging import until

StartHost = Callable[..., HostProcess]

PATIENCE_S = 30.0


class TenantServer(NamedTuple):
    """A running server, and the people who may come.

    Attributes:
        host: its process.
        unix: the path of its socket.
        tcp: where it listens for those with tokens.
        control: its control socket.
        tokens: by name.
        folder: with the files of the tokens.
    """

    host: HostProcess
    unix: str
    tcp: tuple[str, int]
    control: str
    tokens: dict[str, str]
    folder: str

    def come(self, name: str | None = None) -> tuple[socket.socket, dict[str, Any]]:
        """A connection, over TCP with the token of a name, and what it was welcomed with."""
        if name is None:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(PATIENCE_S)
            sock.connect(self.unix)
        else:
            sock = socket.create_connection(self.tcp, PATIENCE_S)
        try:
            channel = UNIX if name is None else ChannelBinding("tcp", sock=sock)
            return sock, handshake_with_server(sock, channel, {}, self.tokens.get(name or ""), None)
        except BaseException:
            sock.close()
            raise

    def visit(self, name: str | None = None) -> dict[str, Any]:
        """As `come`; the connection is closed again."""
        sock, welcome = self.come(name)
        sock.close()
        return welcome

    def rows(self) -> dict[str, dict[str, Any]]:
        """What the status says of each worker."""
        return {row["principal"]: row for row in self.status()["workers"]}

    def status(self) -> dict[str, Any]:
        """What the control socket says."""
        return ask(self.control, ask="status")


def opened(host: HostProcess, unix: str, folder: str) -> TenantServer:
    """A server that lets clients in."""
    host.wait_for("listening")
    listening = host.wait_for("listening")
    host.wait_for("door_ready")
    address = Address.parse(listening["address"])
    tokens = {name: add_account(name, folder, replace=True)[1] for name in ("alice", "bob")}
    return TenantServer(
        host, unix, (address.host, address.port), listening["control"], tokens, folder
    )


def words(folder: Path) -> tuple[str, ...]:
    """The command line of a server with its files in a folder."""
    return (
        *("--worker-per-principal", "--worker-uids", "none", "--cache-dir", "none"),
        *("--token-dir", f"{folder}/tokens", "--control", f"{folder}/s.sock.control"),
        *("--listen", f"unix://{folder}/s.sock", "--listen", "tcp://127.0.0.1:0"),
    )


@pytest.fixture
def start(start_host: StartHost, runtime: Path) -> Callable[..., TenantServer]:
    """Starts a server with a worker for each, for Alice, Bob and the user of this process."""

    def start(*arguments: str, **environment: str) -> TenantServer:
        add_account("nobody", f"{runtime}/tokens", replace=True)  # without any it does not start
        host = start_host(*words(runtime), *arguments, **environment)
        return opened(host, f"{runtime}/s.sock", f"{runtime}/tokens")

    return start


@pytest.fixture(scope="module")
def common() -> Iterator[TenantServer]:
    """One for all tests that come under names of their own."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    add_account("nobody", f"{folder}/tokens")
    host = HostProcess(*words(folder), "--max-workers", "100")
    yield opened(host, f"{folder}/s.sock", f"{folder}/tokens")
    host.close()
    shutil.rmtree(folder)


@pytest.fixture
def house(common: TenantServer) -> Iterator[TenantServer]:
    """The common server, with new tokens for Alice and Bob, who have no workers yet."""
    names = ("alice", "bob")
    tokens = {name: add_account(name, common.folder, replace=True)[1] for name in names}
    yield common._replace(tokens=tokens)
    for name in names:
        with suppress(ConfigurationError):
            remove_account(name, common.folder)
    until(lambda: not {"account:alice", "account:bob"} & set(common.rows()))


def test_each_principal_has_a_worker_of_its_own(house: TenantServer) -> None:
    """Who comes again comes to the same one, over whatever address."""
    mine, alices, bobs = house.visit(), house.visit("alice"), house.visit("bob")
    me = f"uid:{os.getuid()}"
    who = [welcome["principal"] for welcome in (mine, alices, bobs)]
    assert who == [me, "account:alice", "account:bob"]
    assert len({welcome["pid"] for welcome in (mine, alices, bobs)}) == 3
    assert house.visit("alice")["pid"] == alices["pid"]
    rows = house.rows()
    assert [rows[name]["worker_pid"] for name in who] == [
        welcome["pid"] for welcome in (mine, alices, bobs)
    ]
    assert rows["account:alice"]["worker"]["calls"] == 2
    assert house.status()["worker"]["calls"] == sum(row["worker"]["calls"] for row in rows.values())
    assert house.status()["worker_state"] == "ready"


def test_there_are_no_more_workers_than_there_may_be(start: Callable[..., TenantServer]) -> None:
    """Who comes then is told to come again, and those who are here go on."""
    house = start("--max-workers", "1")
    alices = house.visit("alice")
    with pytest.raises(Busy, match="--max-workers") as refusal:
        house.visit("bob")
    assert refusal.value.retry_after_s == 5.0
    assert house.visit("alice")["pid"] == alices["pid"]


@pytest.mark.slow
def test_a_worker_that_rests_makes_room_and_comes_back(start: Callable[..., TenantServer]) -> None:
    """Its principal finds the next one; meanwhile another can have a worker."""
    house = start("--max-workers", "1", FAKE_WORKER="resting")
    first = house.visit("alice")
    until(lambda: house.status()["workers"][0]["worker_state"] == "resting")
    house.visit("bob")
    until(lambda: house.status()["workers"][1]["worker_state"] == "resting")
    again = house.visit("alice")
    assert (first["epoch"], again["epoch"]) == (1, 2)
    with pytest.raises(Busy):
        house.visit("bob")  # the second one of Alice does not rest


@pytest.mark.slow
def test_a_token_of_one_whose_worker_rests_can_be_taken_away(
    start: Callable[..., TenantServer],
) -> None:
    """There is nothing to end then, and nothing that comes back."""
    house = start(FAKE_WORKER="resting")
    house.visit("alice")
    until(lambda: house.rows()["account:alice"]["worker_state"] == "resting")
    remove_account("alice", house.folder)
    until(lambda: not house.rows())
    house.host.signal(signal.SIGTERM)
    code, said = house.host.wait()
    assert code == 0
    assert "Traceback" not in said


def test_a_path_that_is_too_long_for_workers_is_refused_at_the_start(
    start_host: StartHost, runtime: Path
) -> None:
    """Not when the first client comes."""
    path = f"{runtime}/{'x' * (85 - len(str(runtime)))}"
    host = start_host(
        *("--worker-per-principal", "--worker-uids", "none", "--cache-dir", "none"),
        *("--listen", f"unix://{path}"),
    )
    code, said = host.wait()
    assert code == 1
    assert "Choose a shorter --listen" in said


def test_a_worker_that_dies_is_replaced_and_the_others_stay(house: TenantServer) -> None:
    """Its clients see their connections end, and nobody else's do."""
    (alice, alices), (bob, bobs) = house.come("alice"), house.come("bob")
    with closing(alice), closing(bob):
        os.kill(alices["pid"], signal.SIGKILL)
        assert alice.recv(1) == b""
        again = house.visit("alice")
        assert again["epoch"] == 2
        assert house.visit("bob")["pid"] == bobs["pid"]
        bob.setblocking(False)
        with pytest.raises(BlockingIOError):
            bob.recv(1)


def test_the_gateway_can_be_killed(house: TenantServer) -> None:
    """Another one opens; workers and connections in plain text do not notice."""
    bob, bobs = house.come("bob")
    with closing(bob):
        gateway = house.status()["host"]["door_pid"]
        os.kill(gateway, signal.SIGKILL)
        assert house.visit("bob")["pid"] == bobs["pid"]
        bob.setblocking(False)
        with pytest.raises(BlockingIOError):
            bob.recv(1)
        assert house.status()["host"]["door_pid"] != gateway
        assert house.rows()["account:bob"]["worker"]["calls"] == 2


@pytest.mark.slow
def test_a_token_taken_away_while_there_is_no_gateway_counts(house: TenantServer) -> None:
    """The next gateway is told who there was."""
    alices = house.visit("alice")
    gateway = house.status()["host"]["door_pid"]
    os.kill(gateway, signal.SIGSTOP)
    remove_account("alice", house.folder)
    os.kill(gateway, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{alices['pid']}"))


@pytest.mark.slow
def test_all_workers_are_restarted(house: TenantServer) -> None:
    """Each by the next one of its principal; a restart is refused where one is needed."""
    before = [house.visit("alice"), house.visit("bob")]
    outcome = ask(house.control, ask="restart")
    epochs = {row["principal"]: row["epoch"] for row in outcome["workers"]}
    assert (epochs["account:alice"], epochs["account:bob"]) == (2, 2)
    after = [house.visit("alice"), house.visit("bob")]
    assert [one["epoch"] for one in after] == [2, 2]
    assert not {one["pid"] for one in before} & {one["pid"] for one in after}


def test_a_restart_says_whose_worker_is_needed(start: Callable[..., TenantServer]) -> None:
    """As does a stop that may lose nothing; and without a worker there is nothing to restart."""
    house = start(FAKE_WORKER="needed")
    assert "no worker at work" in ask(house.control, ask="restart")["refused"]
    house.visit("alice")
    for request in ({"ask": "restart"}, {"ask": "stop", "loses_values": False}):
        why = ask(house.control, **request)["refused"]
        assert why == "account:alice: it holds arrays of uid:7"


@pytest.mark.slow
def test_who_has_no_worker_because_it_cannot_start_is_told_why(
    start: Callable[..., TenantServer], runtime: Path
) -> None:
    """The server goes on; it is tried again at once when something was installed."""
    site = runtime / "site-packages"
    site.mkdir()
    folders = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    needed = site / "needed.py"
    house = start(FAKE_WORKER="unless installed", FAKE_WORKER_NEEDS=str(needed), PYTHONPATH=folders)
    with pytest.raises((EOFError, OSError)):
        house.visit("alice")
    house.host.wait_for("worker_given_up")
    with pytest.raises(ServerStartFailed, match="before it was ready") as caught:
        house.visit("alice")
    (row,) = house.status()["workers"]
    assert (row["principal"], row["worker_state"]) == ("account:alice", "broken")
    assert row["why"] == str(caught.value)
    needed.touch()
    assert house.visit("alice")["epoch"] > 0
    assert house.rows()["account:alice"]["worker_state"] == "ready"


def test_a_worker_that_never_starts_is_tried_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until it starts, its account is revoked, or that was long ago."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    failed = FailedStarts()
    for delay_s in (10.0, 20.0, 30.0, 30.0):
        failed.record("account:alice", "no driver")
        now[0] += delay_s - 1.0
        assert failed.why("account:alice") == "no driver"
        assert failed.why("account:bob") == ""
        now[0] += 1.0
        assert failed.why("account:alice") == ""
    now[0] += 3600.0
    failed.record("account:alice", "no driver")
    now[0] += 10.0
    assert failed.why("account:alice") == ""
    assert failed.rows({"account:alice"}) == []
    failed.record("uid:1", "no driver")
    failed.keep_only(())
    assert [row["principal"] for row in failed.rows(())] == ["uid:1"]
    failed.forget("uid:1")
    assert failed.rows(()) == []


@pytest.mark.slow
def test_a_stop_leaves_no_process_and_no_file(
    start: Callable[..., TenantServer], runtime: Path
) -> None:
    """Also none that waits for nobody."""
    house = start()
    pids = [house.visit(name)["pid"] for name in (None, "alice", "bob")]
    pids.append(house.status()["host"]["door_pid"])
    assert len(list((runtime / "s.sock.workers").iterdir())) == 3
    house.host.signal(signal.SIGTERM)
    code, _ = house.host.wait()
    assert code == 0
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert [path for path in runtime.rglob("*") if path.is_socket()] == []
    assert not (runtime / "s.sock.workers").exists()


@pytest.mark.slow
def test_a_host_that_is_killed_leaves_no_process(start: Callable[..., TenantServer]) -> None:
    """And the next one opens where it was."""
    house = start()
    pids = [house.visit("alice")["pid"], house.status()["host"]["door_pid"]]
    house.host.signal(signal.SIGKILL)
    house.host.process.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert start().visit("alice")["epoch"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for accounts")
def test_an_account_that_was_revoked_while_no_server_ran_keeps_no_process(
    start_host: StartHost, runtime: Path
) -> None:
    """Nor does one whose worker could not start: nobody has a place then that could be taken."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    folder.chmod(0o711)
    uid = 500_000 + os.getpid() % 1000
    (folder / "principals").mkdir()
    (folder / "principals" / "users.json").write_text(json.dumps({"account:gone": uid}))
    add_account("nobody", f"{runtime}/tokens")
    left = subprocess.Popen(["/bin/sleep", "60"], user=uid, group=uid, extra_groups=[], cwd="/")
    try:
        start_host(
            *words(runtime),
            *("--cache-dir", str(folder), "--worker-uids", f"{uid}-{uid + 1}"),
        )
        assert left.wait(PATIENCE_S) == -signal.SIGKILL
        options = ServerOptions(cache_dir=str(folder), worker_uids=(uid, uid + 1))
        with pytest.raises(ConfigurationError, match="another server has its programs"):
            TenantDirectory(options, claims=True)
    finally:
        left.kill()
        left.wait()
        shutil.rmtree(folder)


class Notes:
    """What a crew has ended, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def begin(self, principal: str) -> None:
        self.done.append(f"begin {principal}")

    async def clear(self, principal: str) -> None:
        self.done.append(f"clear {principal}")


class FailingSlot:
    """A post whose worker cannot be started."""

    is_stopping = False

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    async def run(self, _: object) -> int:
        self.notes.done.append("run")
        raise ServerStartFailed("its own code kills it")


def test_what_an_account_has_left_is_ended_before_its_worker_and_when_it_is_given_up() -> None:
    """It could prevent each next one from starting, and outlive the token."""
    notes = Notes()
    tenant = Tenant("account:alice", "none")
    crew = TenantManager(ServerOptions(), ("worker",))
    crew._cleanup = cast("TenantCleanup", notes)
    place = TenantWorker(tenant, "t", cast("Any", FailingSlot(notes)), None, ExitStack())  # type: ignore[arg-type]
    crew._workers["account:alice"] = place
    assert asyncio.run(crew._run_worker(place)) == 0
    assert notes.done == ["clear account:alice", "run", "begin account:alice"]
    assert crew._workers == {}


def test_without_users_of_their_own_it_says_what_that_means(house: TenantServer) -> None:
    """In the log, at its start."""
    (line,) = [one for one in house.host.said if '"workers_share_user"' in one]
    assert "against accidents, not against each other" in line


def test_a_stop_at_once_kills_all(start: Callable[..., TenantServer]) -> None:
    """Whatever runs."""
    house = start(FAKE_WORKER="busy")
    house.visit("alice")
    assert ask(house.control, ask="stop", now=True) == {"stopping": True}
    code, _ = house.host.wait()
    assert code == 1


@pytest.fixture
def crew(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> TenantManager:
    """One of this process, whose workers rest from the beginning."""

    async def rest(post: Supervisor, listeners: Sequence[Listener], control: str = "") -> int:
        await post.stopping.wait()
        return 0

    monkeypatch.setattr(Supervisor, "run", rest)
    monkeypatch.setattr(Supervisor, "is_resting", True)
    options = ServerOptions(worker_per_principal=True, cache_dir="none")
    crew = TenantManager(options, ())
    crew._tenants = TenantDirectory(options)
    crew._cleanup = TenantCleanup(crew._tenants)
    crew._folder = f"{runtime}/workers"
    return crew


async def closed(crew: TenantManager) -> None:
    """Returns when nobody has a place any more."""
    crew.stop()
    await asyncio.gather(*(one.task for one in crew._workers.values() if one.task))


def test_who_comes_while_others_are_asked_is_asked_too(
    crew: TenantManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that may lose nothing would end the worker of that one, with its arrays."""

    async def asked(post: Supervisor) -> str:
        if "account:late" in crew._workers:
            return "it holds arrays"
        crew._worker_for("account:late", "t")
        post.stop()
        return ""

    async def play() -> None:
        crew._worker_for("account:early", "t")
        monkeypatch.setattr(Supervisor, "stop_if_unneeded", asked)
        assert await crew.stop_if_unneeded() == "account:late: it holds arrays"
        assert not crew.is_stopping
        await closed(crew)

    asyncio.run(play())


def test_who_has_not_come_for_long_has_no_place_but_gets_one(
    crew: TenantManager, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who came once and rest do not use up the host's files."""
    monkeypatch.setattr("jaxd_server.processes.tenants.manager._MAX_RESTING", 1)
    monkeypatch.setattr("jaxd_server.processes.tenants.manager._MIN_RESTING_S", -1.0)

    async def play() -> None:
        first, *_ = [crew._worker_for(f"account:{name}", name)["path"] for name in "abc"]
        assert list(crew._workers) == ["account:b", "account:c"]
        leaving = [one.task for one in crew._detached if one.task]
        again = crew._worker_for("account:a", "a")["path"]  # before the former one is closed
        assert again == first
        await asyncio.gather(*leaving)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(again)
        assert list(crew._workers) == ["account:c", "account:a"]
        await closed(crew)
        assert list((runtime / "workers").iterdir()) == []

    asyncio.run(play())


def test_who_is_dismissed_leaves_no_watch_on_a_descriptor_of_others(
    crew: TenantManager, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host watches the socket of a worker that rests, and the next file has the next number."""
    watched = asyncio.Event()

    async def rest(post: Supervisor, listeners: Sequence[Listener], control: str = "") -> int:
        watched.set()
        await supervisor._wait_for_client(listeners, post.stopping)
        return 0

    monkeypatch.setattr(Supervisor, "run", rest)

    async def play() -> None:
        crew._worker_for("account:a", "a")
        task = crew._workers["account:a"].task
        assert task is not None
        await watched.wait()
        crew._on_gateway_message(cast("Any", None), {"event": "accounts", "valid": {}})
        assert crew._workers == {}
        assert list((runtime / "workers").iterdir()) == []
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        ours, theirs = socket.socketpair()  # one of which would have the number of the listener
        with ours, theirs:
            loop.add_reader(ours, heard.set)
            theirs.send(b"!")
            await asyncio.wait_for(heard.wait(), PATIENCE_S)
            loop.remove_reader(ours)
        assert await task == 0

    asyncio.run(play())


def test_quarantine_outlasts_a_place(crew: TenantManager) -> None:
    """It is listed and released without one, is there in the next, and goes with its token."""

    def condemned(name: str) -> Supervisor:
        crew._worker_for(f"account:{name}", name)
        post = crew._workers[f"account:{name}"].supervisor
        for epoch in (2, 3):
            post.quarantine.record_deaths([entry()], epoch, "SIGSEGV")
        return post

    def whose() -> list[str]:
        return [row["principal"] for row in crew.quarantined()]

    async def play() -> None:
        for post in map(condemned, "abc"):
            post.stop()
        await asyncio.gather(*(one.task for one in crew._workers.values() if one.task))
        assert crew._workers == {}
        assert whose() == ["account:a", "account:b", "account:c"]
        assert crew.describe()["quarantined"] == 3
        crew._on_gateway_message(
            cast("Any", None), {"event": "accounts", "valid": {"account:a": "a"}}
        )
        assert whose() == ["account:a"]
        assert len(crew._quarantine_file.quarantines()[0].rows()) == 1
        assert [row["principal"] for row in crew.release("deadly")] == ["account:a"]
        assert whose() == []
        condemned("a")
        task = crew._workers["account:a"].task
        crew._revoke(crew._workers["account:a"])
        assert whose() == []
        assert task is not None
        await task

    asyncio.run(play())


def test_who_can_have_no_place_is_told_so(
    crew: TenantManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway and all others go on. Whose place it is says the token, too."""
    asked: list[Any] = []

    def fail(_: TenantDirectory, *who: Any) -> NoReturn:
        asked.append(who)
        raise OSError(24, "Too many open files")

    async def play() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TenantDirectory, "of", fail)
            assert "Too many open files" in crew._worker_for("account:a", "digest")["refused"]
            assert asked == [("account:a", "digest")]
        assert "path" in crew._worker_for("account:a", "a")
        await closed(crew)

    asyncio.run(play())


def test_one_report_that_fails_is_missed_in_no_other(
    crew: TenantManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever makes it fail: the operator sees all the others, and the idle server is not over."""

    async def says(self: Supervisor) -> dict[str, Any]:
        if self is crew._workers["account:a"].supervisor:
            raise TypeError("unhashable")
        return {"worker": {"calls": 3}, "worker_state": "ready"}

    async def play() -> None:
        for name in "ab":
            crew._worker_for(f"account:{name}", name)
        monkeypatch.setattr(Supervisor, "status", says)
        monkeypatch.setattr(Supervisor, "idle_s", says)
        monkeypatch.setattr(crew._gateway, "idle_s", partial(asyncio.sleep, 0, 9.0))
        alices, bobs = (await crew.status())["workers"]
        assert (alices["worker_state"], alices["worker"]) == ("unknown", {})
        assert (bobs["worker_state"], bobs["worker"]) == ("ready", {"calls": 3})
        del crew._workers["account:b"]
        assert await crew.idle_s() == 0.0
        await closed(crew)

    asyncio.run(play())


def test_the_host_may_open_what_so_many_workers_need(start: Callable[..., TenantServer]) -> None:
    """Although systems begin with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few, many = min(256, hard), min(1024 + 20 * 16, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        house = start("--max-workers", "20")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(house.host.process.pid, resource.RLIMIT_NOFILE)[0] == many
