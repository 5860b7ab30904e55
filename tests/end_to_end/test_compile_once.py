"""Nothing is traced or compiled twice: proved by counting."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from jaxd import Client
from tests.live_server import LiveServer

pytestmark = pytest.mark.counts_builds

FRESH = """
import json, sys
from jaxd import persistent_call, statistics

@persistent_call(extra_key=sys.argv[1])
def step(x):
    import jax.numpy as jnp
    return jnp.tanh(x) * 2

before = statistics()
value = float(step(1.5))
after = statistics()
loaded = [name for name in ("jax", "numpy") if name in sys.modules]
print(json.dumps([value, after.traces - before.traces, after.compiles - before.compiles, loaded]))
"""


def test_a_second_fresh_process_compiles_nothing(live: LiveServer) -> None:
    """And needs neither jax nor numpy for it."""
    runs = [live.run(FRESH, "second process") for _ in range(2)]
    assert [run.stderr for run in runs] == ["", ""]
    (first, *built), (second, *found) = (json.loads(run.stdout) for run in runs)
    assert first == second
    assert built == [1, 1, []]
    assert found == [0, 0, []]


CAPTURES = """
import json, sys, warnings
if sys.argv[1] == "jax":
    import jax
from jaxd import persistent_call, statistics
warnings.simplefilter("error")

@persistent_call(results="remote")
def weights(x):
    import jax.numpy as jnp
    return jnp.full((3, 7), x)

class Model:
    pass

model = Model()
model.weights = weights(2.0)
model.other = [model.weights, weights(3.0)]

@persistent_call
def apply(x):
    return x * model.weights.sum() + len(vars(model)) + model.other[1][0, 0]

value = float(apply(1.5))
before = statistics()
print(json.dumps([value, before.traces, type(model.weights).__name__]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", ["jax", "plain"])
def test_a_captured_array_of_the_server_counts_by_its_content(
    live: LiveServer, process: str
) -> None:
    """As the array that it stands for: a second fresh process traces nothing."""
    runs = [live.run(CAPTURES, process) for _ in range(2)]
    assert [run.stderr for run in runs] == ["", ""]
    (first, built, kind), (second, found, _) = (json.loads(run.stdout) for run in runs)
    assert kind == "RemoteArray"
    assert first == second == 1.5 * 42 + 2 + 3
    assert built == found


def test_threads_of_one_client_build_once(client: Client) -> None:
    """A function that is new to the server, called by eight threads together."""
    ready = threading.Barrier(8)
    step = client.persistent_call(lambda x: x * 3.0625, extra_key="threads")
    before = client.statistics()

    def ask() -> None:
        ready.wait()
        step(2.0)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = client.statistics()
    assert (after.traces - before.traces, after.compiles - before.compiles) == (1, 1)


def test_a_new_shape_builds_and_a_known_one_does_not(client: Client) -> None:
    """The order of a dict's keys is no new signature."""
    step = client.persistent_call(lambda tree: tree["a"] + tree["b"].sum(), extra_key="shapes")

    def built(tree: Any) -> int:
        before = client.statistics().traces
        step(tree)
        return client.statistics().traces - before

    small, large = np.ones(3, np.float32), np.ones(4, np.float32)
    assert built({"a": 1.0, "b": small}) == 1
    assert built({"a": 2.0, "b": small}) == 0
    assert built({"b": small, "a": 3.0}) == 0
    assert built({"a": 1.0, "b": large}) == 1
    assert built({"a": 1, "b": small}) == 1


def test_options_and_settings_are_part_of_the_key(client: Client) -> None:
    """The same code with other options is another function."""

    def step(x: Any) -> Any:
        return x * 5

    before = client.statistics()
    client.persistent_call(step, extra_key="k")(1.0)
    client.persistent_call(step, extra_key="k", keep_unused=True)(1.0)
    client.persistent_call(step, extra_key="k", config={"jax_numpy_rank_promotion": "warn"})(1.0)
    client.persistent_call(step, extra_key="l")(1.0)
    assert client.statistics().traces - before.traces == 4


def test_another_value_in_the_closure_is_another_function(client: Client) -> None:
    """A changed constant never finds the old executable."""

    def make(scale: float) -> Any:
        return client.persistent_call(lambda x: x * scale, extra_key="closure")

    assert [float(make(scale)(1.0)) for scale in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]
