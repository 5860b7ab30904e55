"""Training written in ways that examples/ecosystem has not: the second run builds nothing."""

# ruff: noqa: E501  programs of users

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import ROOT, LiveServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]  # one fixture visits everything

RUNS = """
import importlib, json, runpy, sys, warnings
from tests.identity.traveller import in_child_process

def run(file):
    sys.argv = [file, *words]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        end = runpy.run_path(file, run_name="__main__")
    return {**end["RESULT"], "heard": [str(w.message) for w in heard if "jaxd" in w.category.__module__]}

libraries, files, words = json.load(sys.stdin)
for name in ["jax", "jaxd", *libraries]:
    importlib.import_module(name)
json.dump([in_child_process(lambda: run(file)) for file in files], sys.stdout)
"""
HEAD = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jaxd import persistent_call, statistics
before = statistics()
x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
y = np.sin(x.sum(1, keepdims=True)) + EXTRA
"""
TAIL = """
def train(step, state):
    losses = []
    for _ in range(3):
        state, loss = step(state, x, y)
        losses.append(float(loss))
    return losses

losses = train(train_step, state)
after = statistics()
RESULT = {
    "losses": losses,
    "expected": train(jax.jit(train_step.__wrapped__), globals().get("local", state))
    if "expected" in sys.argv
    else None,
    "built": [after.traces - before.traces, after.compiles - before.compiles],
}
"""
LINEN = """
import flax.linen as nn
class Block(nn.Module):
    width: int = 8
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(self.width)(nn.relu(nn.LayerNorm()(x)))
class Model(nn.Module):
    width: int = 8
    depth: int = 2
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            x = Block(self.width)(x)
        return nn.Dense(1)(x)
model = Model()
def loss_of(params, x, y):
    return jnp.mean((model.apply({"params": params}, x) - y) ** 2)
"""
PROGRAMS = {
    "plain jax": """
from typing import NamedTuple
class Params(NamedTuple):
    w: jax.Array
    b: jax.Array
class Schedule:
    def __init__(self, lr): self.lr = lr
    def __call__(self, params, grads): return jax.tree.map(lambda p, g: p - self.lr * g, params, grads)
schedule = Schedule(0.125)
def predict(params, x): return jnp.tanh(x @ params.w + params.b)
@persistent_call
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((predict(p, x) - y) ** 2))(params)
    return schedule(params, grads), loss
state = Params(np.full((3, 1), 0.5, np.float32), np.zeros(1, np.float32))
""",
    "flax linen": LINEN
    + """
@persistent_call
def init(seed): return model.init(jax.random.key(seed), jnp.ones((4, 3)))["params"]
@persistent_call(donate_argnums=0)
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
state = init(0)
""",
    "flax linen with TrainState": LINEN
    + """
import optax
from flax.training.train_state import TrainState
tx = optax.adam(0.05)
@persistent_call
def train_step(state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(state.params, x, y)
    return state.apply_gradients(grads=grads), loss
params = jax.jit(model.init)(jax.random.key(0), x)["params"]
state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
""",
}
LIBRARIES = {
    "plain jax": (),
    "flax linen": ("flax.linen",),
    "flax linen with TrainState": ("flax.training.train_state", "optax"),
}


def _run(
    folder: Path, names: list[str], environment: dict[str, str], *words: str
) -> dict[str, Any]:
    """What each program ends with: run as `__main__`, from one interpreter that begins anew."""
    libraries = sorted({library for name in names for library in LIBRARIES[name]})
    files = [str(folder / f"{name.replace(' ', '_')}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", RUNS],
        input=json.dumps([libraries, files, words]),
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, json.loads(done.stdout), strict=True))


def _is_installed(name: str) -> bool:
    return all(find_spec(library.partition(".")[0]) for library in LIBRARIES[name])


@pytest.fixture(scope="module")
def runs(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All programs whose libraries are installed, twice."""
    folder = tmp_path_factory.mktemp("training")
    names = [name for name in PROGRAMS if _is_installed(name)]
    for number, name in enumerate(names):
        text = HEAD.replace("EXTRA", repr(number / 8)) + PROGRAMS[name] + TAIL
        (folder / f"{name.replace(' ', '_')}.py").write_text(text)
    return [_run(folder, names, live.environment, *words) for words in (["expected"], [])]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_run_trains_at_once(name: str, runs: list[dict[str, Any]]) -> None:
    """With the losses of plain `jax.jit`; every step after the first one is a hit, too."""
    if not _is_installed(name):
        pytest.skip("a library is not installed")
    first, second = (run[name] for run in runs)
    assert "" not in first, first[""]
    assert "" not in second, second[""]
    assert first["heard"] == second["heard"] == []
    functions = PROGRAMS[name].count("@persistent_call")
    assert [first["built"], second["built"]] == [[functions, functions], [0, 0]]
    assert first["losses"] == second["losses"] == pytest.approx(first["expected"], rel=1e-5)
    assert len(set(first["losses"])) == 3
