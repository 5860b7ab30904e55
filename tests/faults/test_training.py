"""A training loop whose worker is killed, again and again."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ValuesDied, WorkerLost
from jaxd.remote_values import snapshots
from jaxd.remote_values.lineage import CallLineage
from jaxd.remote_values.snapshots import Snapshots
from tests.end_to_end.several_devices import EIGHT
from tests.end_to_end.steps import kill
from tests.faults.cgroups import memory_cgroup
from tests.faults.proxy import Proxy
from tests.faults.sharded import first_of, sharded_step
from tests.levels import Levels
from tests.live_server import ROOT, TOKEN, LiveServer, source_environment

nn: Any = pytest.importorskip("flax.linen")
optax: Any = pytest.importorskip("optax")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.libraries("flax", "optax"),
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]

StartLive = Callable[..., LiveServer]

WIDTH: Final = 256
BATCH: Final = 16
KILLS: Final = int(os.environ.get("TRAINING_KILLS", "20"))
SEED: Final = int(os.environ.get("TRAINING_SEED", "0"))


class Network(nn.Module):  # type: ignore[misc]  # flax is Any here
    """Two layers, and what is left out by chance."""

    width: int = WIDTH

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=False)(x))


adam: Any = optax.adam(1e-3)


def first_state(network: Any) -> Any:
    """Parameters, optimizer, moving average and key, the same each time."""
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = network.init(rngs, np.zeros((1, network.width), np.float32))["params"]
    ema = jax.tree.map(jnp.copy, params)  # each of its own: all are donated
    return {"params": params, "opt": adam.init(params), "ema": ema, "key": jax.random.key(2)}


def batches(width: int) -> Iterator[Any]:
    """Endless; one cannot be asked for twice."""
    numbers = np.random.default_rng(0)
    while True:
        x = numbers.standard_normal((BATCH, width), np.float32)
        yield {"x": x, "y": np.tanh(x[:, :1])}


class Training:
    """A loop as one writes it for `jax.jit`.

    Args:
        width: of its network.

    Attributes:
        network: what it trains.
        seen: the numbers of the steps that have called back.
        losses: of all steps.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self.network: Any = Network(width)
        self.seen: list[int] = []
        self.losses: list[Any] = []
        self.steps_s: list[float] = []

    def run(self, wrap: Callable[..., Any], goes_on: Callable[[int], bool]) -> Any:
        """Trains as long as that number of steps is wanted; the last state."""
        seen, network = self.seen, self.network

        def record(number: Any) -> None:
            seen.append(int(number))

        def step(state: Any, batch: Any, number: Any) -> Any:
            key, dropout = jax.random.split(state["key"])

            def loss_of(params: Any) -> Any:
                rngs = {"dropout": dropout}
                return (
                    (network.apply({"params": params}, batch["x"], rngs=rngs) - batch["y"]) ** 2
                ).mean()

            loss, gradients = jax.value_and_grad(loss_of)(state["params"])
            updates, opt = adam.update(gradients, state["opt"])
            params = optax.apply_updates(state["params"], updates)
            ema = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["ema"], params)
            jax.debug.callback(record, number)
            return {"params": params, "opt": opt, "ema": ema, "key": key}, loss

        train, state = wrap(step, donate_argnums=0), first_state(network)
        data = batches(network.width)
        while goes_on(len(self.losses)):
            began = time.monotonic()
            state, loss = train(state, next(data), np.int32(len(self.losses)))
            self.losses.append(float(loss))
            self.steps_s.append(time.monotonic() - began)
        return jax.block_until_ready(state)


def check_like_jit(found: Training, state: Any) -> None:
    """Losses and state are those of `jax.jit`, to the last bit; each step has called back once."""
    plain = Training(found.network.width)
    expected = plain.run(jax.jit, lambda number: number < len(found.losses))
    jax.effects_barrier()
    assert found.losses == plain.losses
    numbers = list(range(len(found.losses)))
    assert sorted(found.seen) == sorted(plain.seen) == numbers
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one.fetch()), jax.random.key_data(other)  # noqa: PLW2901
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.fixture
def snapshots_each_second(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many in a short test."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "1")


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("snapshots_each_second")
@pytest.mark.parametrize(
    ("width", "kills"), [(WIDTH, max(1, KILLS // 4)), (1120, KILLS)], ids=["1 MB", "20 MB"]
)
def test_its_worker_is_killed_at_any_moment(
    start_live: StartLive,
    width: int,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    """Uniform over wall time, so also while it starts: the same bits, and no effect twice."""
    server, moments, is_over = start_live(), random.Random(SEED), threading.Event()
    killed = list[int]()

    def killer() -> None:
        for number in range(kills):
            is_over.wait(moments.uniform(0.0, 6.0))
            server.wait_for("worker_started", number + 1)  # each kill is that of another one
            ready = sum(line["event"] == "worker_ready" for line in server.lines)
            killed.append(server.worker_pid())
            with suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)
            if number % 3 == 2:  # five that end while they start are a server that is broken
                server.wait_for("worker_ready", ready + 1)
        is_over.set()

    with connect(server.unix) as client:
        training, more = Training(width), [50]

        def goes_on(number: int) -> bool:
            if number == 1:
                threading.Thread(target=killer, daemon=True).start()
            more[0] -= is_over.is_set()
            return more[0] > 0

        began = time.monotonic()
        state = training.run(client.persistent_call, goes_on)
        all_s = time.monotonic() - began
        check_like_jit(training, state)
        assert client.statistics().epoch > kills
    ended = {line["pid"] for line in server.lines if line["event"] == "worker_exited"}
    assert len(ended.intersection(killed)) == kills
    usual_s = float(np.median(training.steps_s))
    lost_s = (all_s - usual_s * len(training.losses)) / kills
    state_mb = sum(each.nbytes for each in jax.tree.leaves(state)) / 1e6
    record_property(
        "figure",
        f"{state_mb:.0f} MB of state, {kills} kills in {len(training.losses)} steps; "
        f"{lost_s:.1f} s lost for each",
    )


def _killing_once(server: LiveServer, wrapped: Callable[..., Any], at: int) -> Callable[..., Any]:
    """As it is, but that the worker is killed before the call of that number."""
    count = [0]

    def wrapper(*args: Any) -> Any:
        count[0] += 1
        if count[0] == at:
            os.kill(server.worker_pid(), signal.SIGKILL)
        return wrapped(*args)

    return wrapper


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("snapshots_each_second")
@pytest.mark.parametrize("moment", ["during a snapshot", "during a restore", "twice in a row"])
def test_its_worker_is_killed(
    start_live: StartLive, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, and no effect twice."""
    server, steps = start_live(), 40

    def goes_on(number: int) -> bool:
        if number == 10 and moment == "during a restore":  # so that there are calls to make again
            monkeypatch.setattr(Snapshots, "take_if_due", lambda _: None)
        if number == 20:
            if moment == "during a restore":
                monkeypatch.setattr(CallLineage, "make", _killing_once(server, CallLineage.make, 3))
            if moment != "during a snapshot":
                kill(server)
            if moment == "twice in a row":
                kill(server)
        return number < steps

    if moment == "during a snapshot":
        monkeypatch.setenv("JAXD_SNAPSHOT_S", "0.000001")
        monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)
        monkeypatch.setattr(Snapshots, "_take", _killing_once(server, Snapshots._take, 9))
    with connect(server.unix) as client:
        training = Training()
        check_like_jit(training, training.run(client.persistent_call, goes_on))
    ready = [line["event"] for line in server.lines].count("worker_ready")
    assert ready == (2 if moment == "during a snapshot" else 3)


@pytest.mark.timeout(900)
def test_nothing_grows(
    start_live: StartLive,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Over thousands of steps: neither what is kept, nor any table of client, host or worker."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0.5")
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)
    steps = int(os.environ.get("TRAINING_STEPS", "2000"))
    server = start_live("--build-in", "worker")
    with connect(server.unix) as client:
        add = client.persistent_call(lambda state, x: state + x.mean(), donate_argnums=0)
        look = client.persistent_call(tables, static_argnums=0)
        state = client.put(np.zeros(1 << 15, np.float32))
        levels, recovery = [], client.caller.session.values().recovery
        assert recovery is not None
        for number in range(steps):
            state = add(state, np.ones(1000, np.float32))
            if number % (steps // 5) == steps // 5 - 1:
                recovery().snapshots.make_due()
                state = add(state, np.ones(1000, np.float32))
                state.block_until_ready()
                levels.append(Level.of(client, server, [look(number + i / 2) for i in range(2)]))
    assert max(each.kept for each in levels) < 3 * state.nbytes
    assert max(each.values for each in levels) <= 3
    for one, other in itertools.pairwise(levels[1:]):
        grown = [c - b - (b - a) for a, b, c in zip(*one.tables, other.tables[0], strict=True)]
        assert max(grown) < steps // 50, levels
        assert all(abs(b - a) <= 3 for a, b in zip(one.files, other.files, strict=True)), levels
    record_property("figure", f"{steps} steps; at each fifth: {'; '.join(map(str, levels))}")


def tables(number: Any) -> Any:
    """Entries of all containers of this process, and kB of bytes in them, when it is traced."""
    gc.collect()
    objects = gc.get_objects()
    held = {id(each): each for each in (*objects, *gc.get_referents(*objects))}.values()
    entries = sum(len(each) for each in held if type(each) in (dict, list, set, deque))
    nbytes = sum(len(each) for each in held if type(each) in (bytes, bytearray, str))
    return np.array([entries, nbytes >> 10], np.int32)


class Level(NamedTuple):
    """What there is at one moment.

    Attributes:
        kept: bytes that the client keeps to make arrays again.
        values: arrays on the server.
        tables: as `tables` says, of client and worker; and after that was asked once more, which
            makes a function.
        files: open ones of client, host and worker.
        mib: of memory of client, host and worker.
    """

    kept: int
    values: int
    tables: tuple[tuple[int, ...], tuple[int, ...]]
    files: tuple[int, ...]
    mib: tuple[int, ...]

    @classmethod
    def of(cls, client: Client, server: LiveServer, of_worker: Sequence[Any]) -> Level:
        """That of now."""
        pids = os.getpid(), server.process.pid, server.worker_pid()
        found, own = [*map(Levels.of, pids)], tables(0)
        return cls(
            _kept(client),
            client.statistics().values,
            (_together(own, of_worker[0]), _together(own, of_worker[1])),
            tuple(each.files for each in found),
            tuple(int(each.rss_mib) for each in found),
        )

    def __str__(self) -> str:
        return (
            f"{self.kept:,} bytes kept, {'/'.join(map(str, self.tables[0]))} entries and kB of "
            f"client and worker, {'/'.join(map(str, self.mib))} MiB of client, host and worker"
        )


def _together(*tables: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in np.concatenate([*map(np.asarray, tables)]))


def _kept(client: Client) -> int:
    kept = client.kept()
    return kept.call_bytes + kept.snapshot_bytes


@pytest.mark.timeout(300)
def test_the_server_cannot_be_reached_again_and_again(start_live: StartLive) -> None:
    """Twenty times for 0.4 s, once for 5 s: the same bits, and each step has called back once."""
    server, pause = start_live(), threading.Event().wait
    with Proxy(int(server.tcp.rpartition(":")[2])) as proxy:

        def outages(is_over: threading.Event) -> None:
            for seconds in (*[0.4] * 20, 5.0):
                proxy.shut()
                pause(seconds)
                proxy.open_again()
                pause(0.3)
            is_over.set()

        with connect(proxy.address, token=TOKEN) as client:
            training, more, is_over = Training(), [20], threading.Event()
            thread = threading.Thread(target=outages, args=(is_over,), daemon=True)

            def goes_on(number: int) -> bool:
                if number == 1:
                    thread.start()
                more[0] -= is_over.is_set()
                return more[0] > 0

            check_like_jit(training, training.run(client.persistent_call, goes_on))
    assert [line["event"] for line in server.lines].count("worker_ready") == 1


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("snapshots_each_second")
@pytest.mark.parametrize("package", ["jax", "jaxd"])
def test_a_package_is_installed_again(start_live: StartLive, tmp_path: Path, package: str) -> None:
    """By pip, over the files that are there, and then the worker is killed: the same bits."""
    site = tmp_path / "site-packages"
    wheel = _wheel_of(package, tmp_path)
    _install(wheel, site)
    folders = [str(site), *(str(ROOT / part) for part in ("client", "server", "shared"))]
    if package == "jaxd":
        del folders[1:]
    server, steps = start_live(PYTHONPATH=os.pathsep.join(folders)), 60

    def goes_on(number: int) -> bool:
        if number == 20:
            _install(wheel, site)
        if number == 40:
            kill(server)
        return number < steps

    with connect(server.unix) as client:
        training = Training()
        check_like_jit(training, training.run(client.persistent_call, goes_on))
    assert str(site).encode() in Path(f"/proc/{server.worker_pid()}/environ").read_bytes()


def _wheel_of(package: str, folder: Path) -> Path:
    """A wheel of jax as it is installed, without jaxlib, or of this checkout."""
    home = Path(jax.__file__).parent
    (about,) = home.parent.glob("jax-*.dist-info")
    sources, record = [home, about], (about / "RECORD").read_text().splitlines()
    if package == "jaxd":
        about, record = folder / "jaxd-99.0.dist-info", []
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxd\nVersion: 99.0\n")
        (about / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        sources = [about, *(path.parent for path in ROOT.glob("*/jaxd*/__init__.py"))]
        assert len(sources) == 4
    rows = {row.partition(",")[0]: row for row in record}
    made = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}  # when a wheel is installed
    with zipfile.ZipFile(folder / f"{about.stem}-py3-none-any.whl", "w") as wheel:
        for source in sources:
            for path in source.rglob("*"):
                if path.is_file() and path.suffix != ".pyc" and path.name not in made:
                    wheel.write(path, path.relative_to(source.parent))
        names = [*wheel.namelist(), f"{about.name}/RECORD"]
        wheel.writestr(names[-1], "".join(rows.get(name, f"{name},,") + "\n" for name in names))
        return Path(str(wheel.filename))


def _install(wheel: Path, site: Path) -> None:
    """Installs it there, in place of what is there."""
    how = ["--force-reinstall", "--upgrade", "--no-deps", "--no-index", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", "-q", *how, "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    assert [*site.glob(f"{wheel.name.partition('-')[0]}-*.dist-info")]


class Large(NamedTuple):
    """A state that is spread over eight devices, and how much memory there is for it.

    Attributes:
        side: it is square matrices of so many rows.
        parts: how many, and as many for the momentum.
        limit: bytes of the cgroup.
        steps: of the loop; the worker ends ten steps before, and a checkpoint is made each twenty.
    """

    side: int
    parts: int
    limit: int
    steps: int

    @property
    def nbytes(self) -> int:
        """Of the state."""
        return 8 * self.parts * self.side**2


SMALLER: Final = Large(4096, 1, 256 * 1024**2 + 900 * 1024**2, 60)
FOUR_GB: Final = Large(5792, 16, 6 * 1024**3, 40)

SHARDED: Final = """
import json, resource, sys
import jax, numpy as np
from tests.faults.sharded import first_of, sharded_step

side, parts, steps = map(int, sys.argv[1:])
step = jax.jit(sharded_step, donate_argnums=0)
state, losses = jax.jit(first_of(side, parts))(np.float32(1)), []
for number in range(steps):
    state, loss = step(state, np.float32(number))
    losses.append(float(loss))
print(json.dumps([losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]))
"""


def takes_more(x: Any) -> Any:
    """More than there is, each page of it."""
    taken = bytearray(2 << 30)
    taken[:: 1 << 12] = bytes([1]) * (1 << 19)
    return x + len(taken)


def run_out_of_memory(server: LiveServer) -> None:
    """Has a function of somebody else end the worker, and the one after it."""
    with connect(server.unix) as other, pytest.raises(WorkerLost):
        other.persistent_call(takes_more)(1)


@pytest.mark.timeout(300)
def test_memory_is_short_for_somebody_else(start_live: StartLive) -> None:
    """As it is where nobody asks for anything: its small state comes back, with the same bits."""
    server = start_live("--build-in", "worker")

    def goes_on(number: int) -> bool:
        if number == 20:
            run_out_of_memory(server)
        return number < 40

    with memory_cgroup(1 << 30) as cgroup:
        for pid in (server.process.pid, server.worker_pid()):
            cgroup.put(pid)
        with connect(server.unix) as client:
            assert client.kept().is_on
            training = Training()
            check_like_jit(training, training.run(client.persistent_call, goes_on))
            assert client.statistics().epoch >= 3
        server.close()


@pytest.fixture
def no_snapshot_fits(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything made again by its calls."""
    monkeypatch.setenv("JAXD_LINEAGE_S", "0")
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "1000000")


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("no_snapshot_fits")
@pytest.mark.filterwarnings("ignore:.*memory was short:jaxd.errors.ValuesDiedWarning")
@pytest.mark.parametrize(
    ("size", "end"),
    [(SMALLER, kill), (SMALLER, run_out_of_memory), (FOUR_GB, kill)],
    ids=["killed", "out of memory", "4 GB, killed"],
)
def test_a_sharded_state_is_saved_where_memory_is_short(
    start_live: StartLive,
    tmp_path: Path,
    size: Large,
    end: Callable[[LiveServer], None],
    record_property: Callable[[str, object], None],
) -> None:
    """A checkpoint each 20 steps: after the end of a worker the loop ends with the same bits."""
    pytest.importorskip("orbax.checkpoint")
    if size is FOUR_GB and available_bytes() < 14 << 30:
        pytest.skip("needs 14 GiB of memory that nobody uses")
    server = start_live("--build-in", "worker", "--value-bytes", str(size.limit), **EIGHT)
    with memory_cgroup(size.limit) as cgroup:
        for pid in (server.process.pid, server.worker_pid()):
            cgroup.put(pid)
        with pytest.warns(RuntimeWarning, match=r"JAXD_SNAPSHOT_BYTES.*jaxd\.save"):
            losses, peaks, moved = _saving_each_20_steps(server, size, tmp_path, end)
        server.close()
    assert moved < 1 << 20
    sizes = map(str, (size.side, size.parts, size.steps))
    command, variables = [sys.executable, "-c", SHARDED, *sizes], source_environment(tmp_path)
    made = subprocess.run(
        command, env=variables | EIGHT, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    expected, plain_peak = json.loads(made.stdout.splitlines()[-1])
    assert losses == expected
    if end is kill:  # else memory was full
        share = max(peaks) / plain_peak
        record_property(
            "figure",
            f"{size.nbytes >> 20} MiB of state; {max(peaks) >> 20} MiB at most, {share:.2f} times "
            f"as much as plain jax.jit; {moved:,} bytes moved",
        )
        if size is FOUR_GB:  # a smaller one is less than what Python and jax take
            assert share <= 1.1


def _saving_each_20_steps(
    server: LiveServer, size: Large, folder: Path, end: Callable[[LiveServer], None]
) -> tuple[list[float], list[int], int]:
    """The losses, the peaks of workers in bytes, and how many bytes went over the socket."""
    losses, peaks, moved, is_killed = dict[int, float](), list[int](), 0, False
    with connect(server.unix) as client:
        train = client.persistent_call(sharded_step, donate_argnums=0, results="remote")
        begin = client.persistent_call(first_of(size.side, size.parts), results="remote")
        state, number, saved = begin(np.float32(1)), 0, 0
        client.save(state, folder / "0").wait()
        while number < size.steps:
            try:
                state, loss = train(state, np.float32(number))
                losses[number] = float(loss)
                number += 1
                if number % 20 == 0:
                    client.save(state, folder / str(number)).wait()
                    shutil.rmtree(folder / str(saved))
                    saved = number
                    peaks.append(peak_bytes(server.worker_pid()))
                if number == size.steps - 10 and not is_killed:
                    is_killed = True
                    moved = _moved(client)
                    end(server)
            except ValuesDied:
                state, number = client.restore(folder / str(saved), like=state), saved
                peaks.append(peak_bytes(server.worker_pid()))
        moved += _moved(client)
    assert is_killed
    assert len(peaks) == size.steps // 20 + 1
    return [losses[number] for number in range(size.steps)], peaks, moved


def _moved(client: Client) -> int:
    now = client.statistics()
    return now.bytes_received + now.bytes_sent


def available_bytes() -> int:
    """Memory that processes could have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) << 10


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
