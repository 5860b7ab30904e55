"""Training states and other objects of classes: their calls are as warm as those of plain trees."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ArgumentError
from tests.live_server import LiveServer

pytestmark = pytest.mark.counts_builds

StartLive = Callable[..., LiveServer]

TRAIN = """
    import json, sys
    import flax.linen as nn
    import jax, jax.numpy as jnp, numpy as np, optax
    from flax.training.train_state import TrainState
    from jaxd import persistent_call, statistics

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.relu(nn.Dense(8)(x)))

    class State(TrainState):
        rng: jax.Array

    @persistent_call
    def train_step(state, x, y):
        def loss_of(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)
        loss, grads = jax.value_and_grad(loss_of)(state.params)
        rng = jax.random.split(state.rng)[0]
        return state.apply_gradients(grads=grads, rng=rng), loss

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    y = np.sin(x.sum(1, keepdims=True))
    model = Model()
    params = jax.jit(model.init)(jax.random.key(0), x)["params"]
    state = State.create(
        apply_fn=model.apply, params=params, tx=optax.adam(0.05), rng=jax.random.key(1)
    )
    before, looked = statistics(), []
    for _ in range(4):
        state, loss = train_step(state, x, y)
        assert type(state) is State and state.apply_fn.__self__ is model, state
        looked.append(float(loss))
    after = statistics()
    why = train_step.why(state, x, y)
    print(json.dumps({
        "built": [after.traces - before.traces, after.compiles - before.compiles],
        "loaded": after.executable_loads - before.executable_loads,
        "losses": looked,
        "step": int(state.step),
        "why": [why.verdict, list(why.advice)],
    }))
"""


@jax.tree_util.register_dataclass
@dataclass
class State:
    """What a training loop carries along."""

    w: Any
    by: Any = field(default=1.0, metadata={"static": True})


@jax.tree_util.register_static
@dataclass(frozen=True)
class Mode:
    """A node without leaves."""

    name: str


class Couple(NamedTuple):
    left: Any
    right: Any


FACTOR = 2.0


def scaled(x: Any) -> Any:
    return x * FACTOR


def train(server: LiveServer, folder: Path) -> Any:
    """What a process prints that trains for a few steps."""
    file = folder / "train.py"
    file.write_text(textwrap.dedent(TRAIN))
    run = server.run(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def traces(client: Client, call: Callable[[], Any]) -> int:
    """How often something was traced for a call."""
    before = client.statistics().traces
    call()
    return client.statistics().traces - before


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.libraries("flax", "optax")
def test_training_with_flax_and_optax_is_traced_once(start_live: StartLive, tmp_path: Path) -> None:
    """For all steps, other processes and the next worker; states come home as such."""
    server = start_live("--cache-dir", str(tmp_path / "kept"))
    first = train(server, tmp_path)
    assert (first["built"], first["why"]) == ([1, 1], ["hit", []])
    os.kill(server.worker_pid(), signal.SIGKILL)
    second = train(server, tmp_path)
    assert (second["built"], second["loaded"], second["why"]) == ([0, 0], 1, ["hit", []])
    assert first["losses"] == second["losses"]
    assert len(set(first["losses"])) == first["step"] == 4


def test_static_fields_count_by_type_and_value(client: Client) -> None:
    """What jax takes for equal included, and what changed in place."""
    step = client.persistent_call(lambda s: State(s.w * jnp.asarray(s.by), s.by), extra_key="t1")
    x = np.ones(3, np.float32)
    assert traces(client, lambda: step(State(x, 1))) == 1
    assert traces(client, lambda: step(State(x, True))) == 1
    assert traces(client, lambda: step(State(x * 2, 1))) == 0
    by = [1.0]
    total = client.persistent_call(lambda s: s.w * sum(s.by), extra_key="t1")
    assert float(total(State(1.0, by))) == 1.0
    by.append(2.0)
    assert float(total(State(1.0, by))) == 3.0
    assert traces(client, lambda: total(State(2.0, [1.0, 2.0]))) == 0


def test_functions_in_static_fields_are_as_they_are_now(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited global of one makes another program; the same content none."""
    step = client.persistent_call(lambda s: s.by(s.w), extra_key="t2")
    assert float(step(State(1.0, scaled))) == 2.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert float(step(State(1.0, scaled))) == 5.0
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert traces(client, lambda: step(State(3.0, scaled))) == 0


def test_all_kinds_of_nodes_go_there_and_back(client: Client) -> None:
    """With leaves of all kinds among them."""
    tree: dict[str, Any] = {
        "states": {"a": State(1.0), "b": State([np.float32(2), None, {}], "x")},
        "pair": Couple(Couple(3, True), (Mode("m"), jax.random.key(3))),
        "empty": [State(None), Mode("n"), State(())],
    }
    echo = client.persistent_call(lambda tree, **more: (tree, more), extra_key="t3")
    found, more = echo(tree, state=tree["states"]["a"])
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(tree))
    assert type(found["pair"]) is Couple
    assert type(found["states"]["b"]) is State
    assert more["state"].w == 1.0
    assert found["pair"].right[0] == Mode("m")
    expected = [1.0, 2.0, 3, True]
    leaves = jax.tree.leaves((found["states"], found["pair"].left))
    assert sorted(map(float, leaves)) == sorted(map(float, expected))
    assert jax.random.key_data(found["pair"].right[1]).tolist() == [0, 3]
    assert traces(client, lambda: echo(tree, state=State(2.0))) == 0


def test_a_call_with_the_same_structure_is_warm_at_once(client: Client) -> None:
    """The server looks at the bytes of the call, and at no object: the program is planned."""
    step = client.persistent_call(lambda s: s.w["x"] * 2, extra_key="t7")
    step(State({"x": np.ones(3)}, scaled))
    why = step.why(State({"x": np.zeros(3)}, scaled))
    assert (why.verdict, why.advice) == ("hit", ())
    assert why.programs[0]["arguments"] == {"s": "State of 1"}
    why = step.why(State({"x": np.zeros(4)}, scaled))
    assert [each.text for each in why.differences] == ["argument s.w['x']: float64[3] → float64[4]"]


def test_a_program_is_warmed_for_objects_of_specs(client: Client) -> None:
    """The call finds it."""
    step = client.persistent_call(lambda s, n: State(s.w["a"] * n, s.by), extra_key="t4")
    state = State({"a": jnp.ones((3, 4)), "k": jax.random.key(0)}, "mean")
    specs = jax.eval_shape(lambda: state)
    assert step.warm(specs, 2).verdict == "compile"
    assert step.warm(specs, 2).verdict == "hit"
    assert traces(client, lambda: step(state, 3)) == 0


def test_static_and_donated_arguments_beside_objects(client: Client) -> None:
    """Each leaf goes where it belongs."""

    def step(mode: str, state: State, n: Any, *, old: State) -> Any:
        return {"n": n, "mode": mode == "fast"}, state.w["b"] - old.w, state.w["a"]

    call = client.persistent_call(step, static_argnums=0, donate_argnums=1, extra_key="t5")
    for offset in (0, 10):
        state = State({"b": np.full(2, 5.0 + offset), "a": np.full(3, 1.0 + offset)})
        found, difference, a = call("fast", state, 7, old=State(2.0))
        assert (int(found["n"]), bool(found["mode"])) == (7, True)
        np.testing.assert_array_equal(difference, [3.0 + offset] * 2)
        np.testing.assert_array_equal(a, [1.0 + offset] * 3)


def test_a_leaf_that_is_no_data_is_refused(client: Client) -> None:
    """The message says what to do about it."""
    step = client.persistent_call(lambda s: s.w, static="jax", extra_key="t6")
    for leaf in (scaled, Path("."), "text"):
        with pytest.raises(ArgumentError, match="static_argnames"):
            step(State({"w": 1.0, "x": leaf}))


@pytest.mark.soak
def test_objects_are_traced_beside_the_worker_as_well(start_live: StartLive) -> None:
    """The builder takes them apart as the worker does."""
    server = start_live("--build-in", "builder")
    server.wait_for("builder_ready")
    with connect(server.unix) as client:
        step = client.persistent_call(lambda s: State(s.by(s.w["a"]) + s.w["b"], s.by))
        assert traces(client, lambda: step(State({"b": 1.0, "a": np.ones(2)}, scaled))) == 1
        found = step(State({"b": 2.0, "a": np.ones(2)}, scaled))
        assert (found.w.tolist(), found.by) == ([4.0, 4.0], scaled)
