"""A training loop whose worker is killed, again and again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

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
from tests.live_server import LiveServer

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

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Dense(WIDTH)(x))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=False)(x))


network: Any = Network()
adam: Any = optax.adam(1e-3)


def first_state() -> Any:
    """Parameters, optimizer, moving average and key, the same each time."""
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = network.init(rngs, np.zeros((1, WIDTH), np.float32))["params"]
    ema = jax.tree.map(jnp.copy, params)  # each of its own: all are donated
    return {"params": params, "opt": adam.init(params), "ema": ema, "key": jax.random.key(2)}


def batches() -> Iterator[Any]:
    """Endless; one cannot be asked for twice."""
    numbers = np.random.default_rng(0)
    while True:
        x = numbers.standard_normal((BATCH, WIDTH), np.float32)
        yield {"x": x, "y": np.tanh(x[:, :1])}


class Training:
    """A loop as one writes it for `jax.jit`.

    Attributes:
        seen: the numbers of the steps that have called back.
        losses: of all steps.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.losses: list[Any] = []
        self.steps_s: list[float] = []

    def run(self, wrap: Callable[..., Any], goes_on: Callable[[int], bool]) -> Any:
        """Trains as long as that number of steps is wanted; the last state."""
        seen = self.seen

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

        train, state, data = wrap(step, donate_argnums=0), first_state(), batches()
        while goes_on(len(self.losses)):
            began = time.monotonic()
            state, loss = train(state, next(data), np.int32(len(self.losses)))
            self.losses.append(float(loss))
            self.steps_s.append(time.monotonic() - began)
        return jax.block_until_ready(state)


def check_like_jit(found: Training, state: Any) -> None:
    """Losses and state are those of `jax.jit`, to the last bit; each step has called back once."""
    plain = Training()
    expected = plain.run(jax.jit, lambda number: number < len(found.losses))
    jax.effects_barrier()
    assert found.losses == plain.losses
    assert sorted(found.seen) == sorted(plain.seen) == list(range(len(found.losses)))
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one.fetch()), jax.random.key_data(other)  # noqa: PLW2901
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.fixture
def snapshots_each_second(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many in a short test."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "1")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("snapshots_each_second")
def test_its_worker_is_killed_at_any_moment(
    start_live: StartLive, record_property: Callable[[str, object], None]
) -> None:
    """Uniform over wall time, so also while it starts: the same bits, and no effect twice."""
    server, moments, is_over = start_live(), random.Random(SEED), threading.Event()

    def killer() -> None:
        for number in range(KILLS):
            is_over.wait(moments.uniform(0.0, 6.0))
            ready = sum(line["event"] == "worker_ready" for line in server.lines)
            with suppress(ProcessLookupError):
                os.kill(server.worker_pid(), signal.SIGKILL)
            if number % 3 == 2:  # five that end while they start are a server that is broken
                server.wait_for("worker_ready", ready + 1)
        is_over.set()

    with connect(server.unix) as client:
        training, more = Training(), [50]

        def goes_on(number: int) -> bool:
            if number == 1:
                threading.Thread(target=killer, daemon=True).start()
            more[0] -= is_over.is_set()
            return more[0] > 0

        began = time.monotonic()
        state = training.run(client.persistent_call, goes_on)
        all_s = time.monotonic() - began
        check_like_jit(training, state)
    usual_s = float(np.median(training.steps_s))
    lost_s = (all_s - usual_s * len(training.losses)) / KILLS
    record_property(
        "figure", f"{KILLS} kills in {len(training.losses)} steps; {lost_s:.1f} s lost for each"
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
    assert [line["event"] for line in server.lines].count("worker_ready") >= 2


@pytest.mark.timeout(300)
def test_nothing_grows(
    start_live: StartLive,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Over thousands of steps: neither what is kept, nor what the server holds."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0.5")
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)
    steps = int(os.environ.get("TRAINING_STEPS", "5000"))
    server = start_live()
    with connect(server.unix) as client:
        add = client.persistent_call(lambda state, x: state + x.mean(), donate_argnums=0)
        state = client.put(np.zeros(1 << 15, np.float32))
        levels, recovery = [], client.caller.session.values().recovery
        assert recovery is not None
        for number in range(steps):
            state = add(state, np.ones(1000, np.float32))
            if number % (steps // 5) == steps // 5 - 1:
                recovery().snapshots.make_due()
                state = add(state, np.ones(1000, np.float32))
                state.block_until_ready()
                levels.append((_kept(client), _objects(), client.statistics().values))
        kept, objects, values = zip(*levels, strict=True)
    assert max(values) <= 3
    assert max(objects[1:]) - min(objects[1:]) < steps // 50
    assert max(kept) < 3 * state.nbytes
    record_property("figure", f"{steps} steps; kept {max(kept):,} bytes at most")


def _kept(client: Client) -> int:
    kept = client.kept()
    return kept.call_bytes + kept.snapshot_bytes


def _objects() -> int:
    import gc

    gc.collect()
    return len(gc.get_objects())


SIDE: Final = 4096
"""The state is two such square matrices: 128 MiB, on eight devices."""


def sharded_step(state: Any, n: Any) -> Any:
    """Momentum, element by element, so that it does not depend on how many devices there are."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    w, m = (jax.lax.with_sharding_constraint(each, where) for each in (state["w"], state["m"]))
    m = m * 0.5 + (w - n) * 0.25
    w = w - m * 0.5
    return {"w": w, "m": m}, w[7, 9]


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
@pytest.mark.filterwarnings("ignore:.*memory was short:jaxd.errors.ValuesDiedWarning")
@pytest.mark.parametrize("end", [kill, run_out_of_memory], ids=["killed", "out of memory"])
def test_a_sharded_state_is_saved_where_memory_is_short(
    start_live: StartLive,
    tmp_path: Path,
    end: Callable[[LiveServer], None],
    record_property: Callable[[str, object], None],
) -> None:
    """A checkpoint each 20 steps: after the end of a worker the loop ends with the same bits."""
    pytest.importorskip("orbax.checkpoint")
    server = start_live("--build-in", "worker", "--value-bytes", "2G", **EIGHT)
    steps, state_bytes = 60, 8 * SIDE * SIDE
    with memory_cgroup(2 * state_bytes + (900 << 20)) as cgroup, connect(server.unix) as client:
        for pid in (server.process.pid, server.worker_pid()):
            cgroup.put(pid)
        train = client.persistent_call(sharded_step, donate_argnums=0, results="remote")
        begin = client.persistent_call(
            lambda n: {"w": jnp.ones((SIDE, SIDE)) * n, "m": jnp.zeros((SIDE, SIDE))}
        )
        state, losses, number, saved, is_killed = begin(1.0), {}, 0, 0, False
        client.save(state, tmp_path / "0").wait()
        while number < steps:
            try:
                state, loss = train(state, np.float32(number))
                losses[number] = float(loss)
                number += 1
                if number % 20 == 0:
                    client.save(state, tmp_path / str(number)).wait()
                    saved = number
                if number == 50 and not is_killed:
                    is_killed = True
                    end(server)
            except ValuesDied:
                state, number = client.restore(tmp_path / str(saved), like=state), saved
        peak, now = cgroup.peak_bytes(), client.statistics()
        moved = now.bytes_received + now.bytes_sent
        server.close()
    assert is_killed
    assert moved < 1 << 20
    plain = jax.jit(sharded_step, donate_argnums=0)
    here = {"w": jnp.ones((SIDE, SIDE)), "m": jnp.zeros((SIDE, SIDE))}
    for number in range(steps):
        here, loss = plain(here, np.float32(number))
        assert float(loss) == losses[number]
    if end is kill:  # else memory was full
        record_property("figure", f"{state_bytes >> 20} MiB of state; {peak >> 20} MiB at most")
