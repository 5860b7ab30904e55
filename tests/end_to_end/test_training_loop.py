"""A training loop written for `jax.jit`: the state stays on the server, and nothing gets lost."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest

import jaxd
from jaxd import Client, RemoteArray, connect
from jaxd.errors import ValueDeleted
from tests.end_to_end.passing_on import Way
from tests.end_to_end.throttle import MBIT, Throttle
from tests.end_to_end.training import (
    BATCH,
    BATCH_BYTES,
    WIDTH,
    assert_same,
    batches,
    first_state,
    train,
    train_step,
)
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until
from tests.warm_clients import run_light

StartLive = Callable[..., LiveServer]

pytestmark = [pytest.mark.own_server, pytest.mark.timeout(180)]

MESSAGES: Final = 1 << 14
"""Bytes of a step that are neither batch nor loss."""


@pytest.fixture
def link(live: LiveServer) -> Iterator[Throttle]:
    """A network between a client and the server."""
    with Throttle(int(live.tcp.rpartition(":")[2])) as made:
        yield made


@pytest.mark.slow
def test_training_is_that_of_jit(client: Client) -> None:
    """Losses and state, of which the large arrays stay on the server until they are looked at."""
    expected, expected_losses = train(jax.jit(train_step, donate_argnums=0), batches(6))
    step = client.persistent_call(train_step, donate_argnums=0)
    state, losses = train(step, batches(6))
    assert isinstance(state.params["Dense_0"]["kernel"], RemoteArray)
    assert type(state) is type(expected)
    assert int(state.step) == 6
    np.testing.assert_allclose(
        [float(x) for x in losses], [float(x) for x in expected_losses], 1e-4
    )
    assert_same(state, expected)


@pytest.mark.slow
def test_a_step_moves_its_batch_and_its_loss(client: Client) -> None:
    """And a few kilobytes that say what is where: the state does not move."""
    step = client.persistent_call(train_step, donate_argnums=0)
    state, _ = train(step, batches(2))
    before = client.statistics()
    for batch in batches(10):
        state, loss = step(state, batch)
        float(loss)
    after = client.statistics()
    assert (after.bytes_received - before.bytes_received) / 10 < BATCH_BYTES + MESSAGES
    assert (after.bytes_sent - before.bytes_sent) / 10 < MESSAGES


@pytest.mark.slow
def test_many_arrays_that_are_small_do_not_move_either(client: Client) -> None:
    """What is small comes home by itself, but not all of a large state in small pieces."""

    def step(state: Any, x: Any) -> Any:
        state = jax.tree.map(lambda w: w + x.mean(), state)
        return state, state[0].sum()

    call = client.persistent_call(step, donate_argnums=0)
    state: Any = [np.zeros((64, 64), np.float32) for _ in range(100)]
    for _ in range(2):
        state, _ = call(state, np.ones(8, np.float32))
    before = client.statistics()
    for _ in range(10):
        state, _ = call(state, np.ones(8, np.float32))
    after = client.statistics()
    assert (after.bytes_received - before.bytes_received) / 10 < MESSAGES
    assert (after.bytes_sent - before.bytes_sent) / 10 < MESSAGES
    np.testing.assert_array_equal(state[7], np.full((64, 64), 12))


@pytest.mark.slow
def test_a_donated_state_is_free_at_once(start_live: StartLive) -> None:
    """The server never holds two of them, and the old one says what became of it."""
    with connect(start_live().unix) as client:
        step = client.persistent_call(train_step, donate_argnums=0)
        state = train(step, batches(2))[0]
        jaxd.wait(state)
        leaves = len(jax.tree.leaves(state))
        until(lambda: client.statistics().values == leaves)
        for batch in batches(5):
            old, (state, loss) = state, step(state, batch)
            float(loss)
            assert client.statistics().values <= leaves + 2  # and two losses
        kernel = old.params["Dense_0"]["kernel"]
        assert kernel.is_deleted()
        with pytest.raises(ValueDeleted, match="train_step"):
            np.asarray(kernel)
        del old, state, kernel, loss
        until(lambda: client.statistics().values == 0)


def test_a_slow_link_sees_the_same_bytes(live: LiveServer) -> None:
    """Counted on a line of 100 Mbit/s."""
    with (
        Throttle(int(live.tcp.rpartition(":")[2]), 100 * MBIT, 0.002) as link,
        connect(link.address, token=TOKEN) as client,
    ):
        step = client.persistent_call(train_step, donate_argnums=0)
        state, _ = train(step, batches(2))
        jaxd.wait(state)
        before = dict(link.passed)
        for batch in batches(10):
            state, loss = step(state, batch)
        float(loss)
        assert (link.passed["up"] - before["up"]) / 10 < BATCH_BYTES + MESSAGES
        assert (link.passed["down"] - before["down"]) / 10 < MESSAGES


# a lost network -----------------------------------------------------------------------------------


def counted(path: str) -> Callable[[Any, Any], Any]:
    """The step; a line is added to a file whenever it is run."""

    def note(x: Any) -> Any:
        with Path(path).open("a") as file:  # no plain open(): that is warned of
            file.write("run\n")
        return x

    def counted_step(state: Any, batch: Any) -> Any:
        x = jax.pure_callback(note, jax.typeof(batch["x"]), batch["x"])  # runs on the server
        return train_step(state, {**batch, "x": x})

    return counted_step


def runs(path: Path) -> int:
    """How often it was run."""
    return path.read_text().count("run")


FAR: Final[dict[Way, int]] = {"up": 2 * BATCH_BYTES, "down": 1000}
"""How many bytes later the network may be cut: those of a few steps."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))]
)
def test_a_network_that_is_lost_costs_nothing(link: Throttle, tmp_path: Path, seed: int) -> None:
    """Wherever it is cut, in whichever direction: each step is run once, and none is left out."""
    chance, path, given = random.Random(seed), tmp_path / "runs", batches(24)
    expected, _ = train(jax.jit(train_step), given)
    with connect(link.address, token=TOKEN) as client:
        step = client.persistent_call(counted(str(path)), donate_argnums=0)
        state, losses = first_state(), []
        for turn, batch in enumerate(given):
            if turn % 4 == 2:
                way = chance.choice(list(FAR))
                link.cut_after(way, chance.randrange(FAR[way]))
            state, loss = step(state, batch)
            losses.append(loss)
        assert int(state.step) == len(given)
        assert_same(state, expected)
        assert all(np.isfinite(np.asarray(losses)))
    assert runs(path) == len(given)
    assert link.cuts >= 1


def test_a_network_that_is_lost_between_steps_costs_nothing(link: Throttle) -> None:
    """Nothing is on its way: the state is there when the client comes back."""
    with connect(link.address, token=TOKEN) as client:
        step = client.persistent_call(train_step, donate_argnums=0)
        state, _ = train(step, batches(3))
        jaxd.wait(state)
        link.cut()
        batch = batches(4)[3]
        state, _ = step(state, batch)
        expected, _ = train(jax.jit(train_step), batches(4))
        assert_same(state, expected)
        link.cut()
        assert_same(jaxd.get(state), expected)


# without the libraries ----------------------------------------------------------------------------

IN_A_LIGHT_PROCESS = """
import sys
import numpy as np
from jaxd import persistent_call

@persistent_call
def begin(params):
    import optax
    return optax.adam(1e-2).init(params)

@persistent_call
def step(params, state, x):
    import jax, optax
    gradients = jax.grad(lambda params: ((x @ params["w"]) ** 2).mean())(params)
    updates, state = optax.adam(1e-2).update(gradients, state, params)
    return optax.apply_updates(params, updates), state

params, x = {"w": np.ones((4, 2), "f4")}, np.ones((3, 4), "f4")
state = begin(params)
for _ in range(3):
    params, state = step(params, state, x)
assert not {"jax", "optax"} & sys.modules.keys()
print(type(state[0]).__name__, int(state[0].count), round(float(params["w"][0, 0]), 3))
"""


def test_the_state_of_a_library_goes_back_from_a_process_without_it(live: LiveServer) -> None:
    """What stands for the library's named tuple here is that tuple again on the server."""
    run = run_light(live, IN_A_LIGHT_PROCESS)
    assert (run.stdout, run.stderr) == ("ScaleByAdamState 3 0.97\n", "")


# saving and restoring -----------------------------------------------------------------------------


def test_flax_writes_a_state_and_reads_it(client: Client) -> None:
    """The bytes are those of a state that is here; what is read trains on."""
    serialization = pytest.importorskip("flax.serialization")
    step = client.persistent_call(train_step, donate_argnums=0)
    state, _ = train(step, batches(3))
    data = serialization.to_bytes(state)
    assert data == serialization.to_bytes(jaxd.get(state))
    restored = serialization.from_bytes(first_state(), data)
    assert_same(restored, state)
    batch = batches(4)[3]
    assert_same(step(restored, batch)[0], step(state, batch)[0])


@pytest.mark.filterwarnings("ignore:::orbax")
def test_orbax_saves_a_state_and_restores_it(client: Client, tmp_path: Path) -> None:
    """As it lies on the server, into one that lies there and into one that does not."""
    orbax = pytest.importorskip("orbax.checkpoint")
    step = client.persistent_call(train_step, donate_argnums=0)
    state, _ = train(step, batches(3))
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "saved", first_state())
    assert_same(restored, state)
    batch = batches(4)[3]
    assert_same(step(restored, batch)[0], step(state, batch)[0])


# errors -------------------------------------------------------------------------------------------


def refuse_large_numbers(x: Any) -> Any:
    """Called on the server while the step runs."""
    if np.max(x) > 100:
        raise ArithmeticError("the batch has large numbers")
    return np.asarray(x)


def checked_step(state: Any, batch: Any) -> Any:
    """The step, which fails while it runs when the batch is bad."""
    x = jax.pure_callback(refuse_large_numbers, jax.typeof(batch["x"]), batch["x"])
    return train_step(state, batch | {"x": x})


def test_a_step_that_fails_says_so_where_its_result_is_used(client: Client) -> None:
    """With the traceback of the step that failed, however many came after it."""
    step = client.persistent_call(checked_step)
    state, _ = train(step, batches(3))
    bad, *after = batches(4)
    bad["x"] = bad["x"] + 1000

    def train_on() -> float:
        lost, loss = step(state, bad)
        for batch in after:
            lost, loss = step(lost, batch)
        return float(loss)

    with pytest.raises(Exception, match="the batch has large numbers") as caught:
        train_on()
    assert "refuse_large_numbers" in "".join(traceback.format_exception(caught.value))
    assert np.isfinite(float(step(state, after[0])[1]))  # the state before it is what it was


def test_a_step_that_cannot_be_traced_leaves_the_state_alive(client: Client) -> None:
    """It failed before anything was given up."""
    step = client.persistent_call(train_step, donate_argnums=0)
    state, _ = train(step, batches(2))
    wrong = {"x": np.ones((BATCH, WIDTH + 1), np.float32), "y": np.ones((BATCH, 1), np.float32)}
    with pytest.raises(Exception, match="kernel"):
        step(state, wrong)
    state, loss = step(state, batches(1)[0])
    assert np.isfinite(float(loss))
