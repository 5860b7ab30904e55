"""A client process that has imported jax, of its own version: beside a server with this one's.

`make client-jax` runs it with other versions (`CLIENT_PYTHONS`): each program has a server of its
own, since one that knows a function already does not unpack it again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.live_server import LiveServer, live_server

PYTHONS = os.environ.get("CLIENT_PYTHONS", sys.executable).split()

PRELUDE = """
import dataclasses, json, sys, threading, warnings
import numpy as np
import jax
import jax.numpy as jnp
import jaxd
from jaxd import persistent_call

warnings.simplefilter("ignore", jaxd.errors.SkewWarning)
x, y = jnp.linspace(0, 1, 8), jnp.full((8,), 2.0)

@persistent_call
def step(x, y):
    import jax.numpy as jnp
    return jnp.sin(x) * y, {"sum": (x * y).sum()}

def close(one, other):
    return bool(np.allclose(np.asarray(one), np.asarray(other), atol=1e-5))

checks = {}
def check(function):
    checks[function.__name__] = function
"""

CHECKS = """
@check
def arrays():
    one, other = step(x, y)
    assert isinstance(one, jax.Array) and isinstance(other["sum"], jax.Array)
    assert step(2.0, jnp.ones(3))[0].shape == (3,)
    assert persistent_call(lambda x: x + x)(jnp.ones(4, jnp.bfloat16)).dtype == jnp.bfloat16
    return close(one, np.sin(x) * 2)

@check
def weak_types():
    result = persistent_call(lambda x: x * 2)(2.0)
    return result.weak_type and (result + jnp.ones(2, "f2")).dtype == jnp.float16

@check
def keys():
    key = jax.random.key(3)
    @persistent_call
    def split(key):
        import jax
        return jax.random.split(key, 3), jax.random.uniform(key, (2,))
    several, numbers = split(key)
    data = jax.random.key_data
    same = bool((data(several) == data(jax.random.split(key, 3))).all())
    return same and close(numbers, jax.random.uniform(key, (2,)))

@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, one, other):
        self.one, self.other = one, other
    def tree_flatten(self):
        return (self.one, self.other), None
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: jax.Array
    step: jax.Array

@check
def registered_classes():
    pair = persistent_call(lambda p: Pair(p.one * 2, p.other + 1))(Pair(x, y))
    state = persistent_call(lambda s: State(s.weights * 2, s.step + 1))(State(x, jnp.int32(1)))
    assert type(pair) is Pair and type(state) is State and int(state.step) == 2
    return close(pair.one, x * 2) and close(state.weights, x * 2)

@check
def inside_of_jit():
    return close(jax.jit(lambda x: step(x, y)[0] + 1)(x), np.sin(x) * 2 + 1)

@check
def derivatives():
    assert close(persistent_call(lambda x: (x ** 2).sum()).grad()(x), 2 * x)
    return close(jax.grad(lambda x: step(x, y)[0].sum())(x), np.cos(x) * 2)

@check
def batches():
    return close(jax.vmap(lambda x: step(x, 2.0)[0])(x), np.sin(x) * 2)

@check
def loops():
    last, _ = jax.lax.scan(lambda c, each: (step(c, each)[0], c), 1.0, x)
    return jax.eval_shape(step, x, y)[0].shape == (8,) and last.shape == ()

@check
def captured():
    array, key, jitted = jnp.arange(4.0), jax.random.key(1), jax.jit(lambda x: x * 3)
    spec = jax.sharding.PartitionSpec("a", None)

    @jax.custom_jvp
    def twice(x):
        return x * 2

    @twice.defjvp
    def _(primals, tangents):
        return twice(*primals), tangents[0] * 5

    def function(x):
        import jax
        return twice(jitted(x)) + array + jax.random.uniform(key) + len(spec)

    expected = 6 + np.arange(4.0) + np.asarray(jax.random.uniform(key)) + 2
    return close(persistent_call(function)(1.0), expected)

@check
def arrays_on_the_server():
    kept = jaxd.put(np.ones((64, 64), "f4"))
    result = persistent_call(lambda v: v + 1)(kept)
    assert isinstance(result, jax.Array) and float(jnp.sum(result)) == 2 * 64 * 64
    return close(jax.jit(lambda z: z * 2)(result), 4) and close(kept.at[0, 0].set(3)[0, 0], 3)

@check
def settings():
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable(True):
        assert persistent_call(lambda x: x * 2)(np.arange(3.0)).dtype == np.float64
    with jax.default_matmul_precision("highest"):
        before = jaxd.statistics().traces
        step(x, y)
        assert jaxd.statistics().traces == before + 1
    with jax.disable_jit():
        return close(step(x, y)[0], np.sin(x) * 2)

@check
def callbacks():
    seen = []
    def function(x):
        import jax
        jax.debug.callback(seen.append, x)
        return x
    persistent_call(function)(jnp.float32(2))
    jax.effects_barrier()
    return [float(each) for each in seen] == [2.0]

@check
def several_calls():
    futures = [step.submit(float(i), 2.0) for i in range(3)]
    assert [float(each.result()[1]["sum"]) for each in futures] == [0.0, 2.0, 4.0]
    return len(list(step.map([1.0, 2.0], [1.0, 1.0]))) == 2

@check
def sharded_over_one_device():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("a",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    return close(step(jax.device_put(x, sharding), y)[0], np.sin(x) * 2)

@check
def what_runs_here():
    lock = threading.Lock()
    def function(x):
        with lock:
            return x + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(persistent_call(function, fallback="local")(1.0)) == 2.0

@check
def errors_of_types():
    try:
        persistent_call(lambda x: jnp.zeros(3) + jnp.zeros(4))(1.0)
    except TypeError as error:
        return "on the jaxd server" in "".join(error.__notes__)

found = {}
for name, function in checks.items():
    try:
        found[name] = bool(function())
    except Exception as error:
        import traceback
        traceback.print_exc()
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps([jax.__version__, found]))
"""


def run_by(python: str, server: LiveServer, program: str) -> Any:
    """What a program prints, as JSON, that another interpreter runs with a server."""
    command = [python, "-c", PRELUDE + program]
    done = subprocess.run(
        command, env=server.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_a_client_with_any_jax_has_all_of_it(
    start_live: Callable[..., LiveServer], python: str
) -> None:
    """Arrays, keys, registered classes, tracers, captured objects, settings, callbacks."""
    (version, found), errors = run_by(python, start_live(), CHECKS)
    assert {name: each for name, each in found.items() if each is not True} == {}, errors
    assert len(found) == 16, version


HERE = """
try:
    said = float(persistent_call(lambda x: x + 7, place="here")(1.0))
except jaxd.errors.PlaceRefused as error:
    said = str(error)
print(json.dumps([jax.__version__, said]))
"""
EXPORTED = """
keys = jax.random.key(0)
function = persistent_call(lambda x: jnp.sin(x) + jax.random.uniform(keys))
print(json.dumps([jax.__version__, float(function(1.5))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("python", [each for each in PYTHONS if each != sys.executable])
def test_what_another_jax_has_made_is_read_or_refused_in_words(
    start_live: Callable[..., LiveServer], python: str
) -> None:
    """Programs of the server do not come to this process; those that it exports are read."""
    (version, said), _ = run_by(python, start_live(), HERE)
    assert version in str(said)
    assert "place='auto'" in said
    with live_server("--accept", "exported") as server:
        (_, found), _ = run_by(python, server, EXPORTED)
    assert found == pytest.approx(1.9451621)
