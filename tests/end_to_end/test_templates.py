"""Training states and other objects of classes: their calls are as warm as those of plain trees."""

from __future__ import annotations

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


def traces(client: Client, call: Callable[[], Any]) -> int:
    """How often something was traced for a call."""
    before = client.statistics().traces
    call()
    return client.statistics().traces - before


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
