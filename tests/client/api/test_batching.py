"""`jaxd.vmap_auto`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, persistent_call, vmap_auto
from jaxd.errors import ArgumentError, ConfigurationError
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer
from tests.warm_clients import run_light


class Pair(NamedTuple):
    x: Any
    y: Any


def score(problem: Any, w: Any, *, scale: float = 1.0) -> Any:
    """Of one example, in a tree with what is the same for all."""
    bias = problem["config"]["bias"] if problem["config"]["mode"] == "affine" else 0.0
    return {"s": jnp.dot(problem["pair"].x, w) * scale + bias, "y": problem["pair"].y + 1}


def problem(rows: int, mode: str = "affine") -> Any:
    """As many examples as that."""
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    config = {"mode": mode, "bias": np.float32(0.5), "none": None}
    return {"pair": Pair(x, np.arange(rows)), "config": config}


W = np.array([1.0, -2.0, 3.0], np.float32)


def expected(rows: int, mode: str = "affine", scale: float = 1.0) -> list[Any]:
    """One example after the other."""
    whole = problem(rows, mode)
    pairs = zip(*whole["pair"], strict=True)
    ones = [score({**whole, "pair": Pair(x, y)}, W, scale=scale) for x, y in pairs]
    return [np.stack([one[name] for one in ones]).tolist() for name in ("s", "y")]


def found(result: Any) -> list[Any]:
    return [np.asarray(result[name]).tolist() for name in ("s", "y")]


def test_what_is_batched_is_seen_from_its_shape(client: Client) -> None:
    """Anywhere in the arguments; text is static, numbers are the same for all."""
    batched = vmap_auto(score, 4, client=client)
    assert found(batched(problem(4), W)) == expected(4)
    assert found(batched(problem(4), W, scale=2.0)) == expected(4, scale=2.0)
    assert found(batched(problem(4, "linear"), W)) == expected(4, "linear")
    assert repr(batched).startswith("<batches of 4 for <function score")


def test_a_last_batch_may_be_smaller(client: Client) -> None:
    """Then what is batched is what was; one that comes first cannot be told."""
    batched = vmap_auto(score, 4, client=client, extra_key="last")
    with pytest.raises(ArgumentError, match=r"no array has 4 entries.*in_axes"):
        batched(problem(3), W)
    with costs(client) as spent:
        for rows in (4, 4, 3, 4, 3):
            assert found(batched(problem(rows), W)) == expected(rows)
    assert spent["traces"] == 2
    assert found(batched(problem(1), W)) == expected(1)
    assert found(batched(problem(3), W)) == expected(3)  # and not W, which has 3 rows as well


def test_examples_that_do_not_match_are_refused(client: Client) -> None:
    """The message says how many there are of each."""
    add = vmap_auto(lambda x, y: x + y, 4, client=client)
    add(np.ones(4), np.ones(4))
    with pytest.raises(ArgumentError, match="3 and 4 examples"):
        add(np.ones(4), np.ones(3))


def test_axes_can_be_said(client: Client) -> None:
    """As for `jax.vmap`: another axis, a tree of them, None for what is the same for all."""

    def weigh(pair: Any, w: Any, *, b: Any) -> Any:
        return jnp.dot(pair.x, w) + pair.y + b

    x, y, b = np.arange(15.0).reshape(3, 5), np.float32(2), np.arange(5.0)
    for axes in ((Pair(1, None), None), [Pair(1, None), None]):
        batched = vmap_auto(weigh, 2, in_axes=axes, client=client)
        found = batched(Pair(x, y), W, b=b)
        np.testing.assert_allclose(found, x.T @ W + 2 + b, rtol=1e-6)
    everything = vmap_auto(lambda x, y: x * y, 8, in_axes=0, client=client)
    assert np.asarray(everything(b, b)).tolist() == (b * b).tolist()


def test_keys_and_results_of_other_calls_are_arrays(client: Client) -> None:
    """Typed keys among them; what lies on the server stays there."""
    draw = vmap_auto(lambda key, x: x + jax.random.normal(key), 3, client=client)
    keys, x = jax.random.split(jax.random.key(0), 3), client.put(np.ones(3, np.float32))
    theirs = jax.jit(jax.vmap(lambda key, x: x + jax.random.normal(key)))(keys, np.ones(3))
    np.testing.assert_array_equal(np.asarray(draw(keys, x)), theirs)


def test_a_persistent_function_may_be_what_is_batched(client: Client) -> None:
    """It is one program, with no call inside."""
    inner = persistent_call(lambda x: x * 2, client=client)
    before = client.statistics().calls
    assert np.asarray(vmap_auto(inner, 2, client=client)(np.ones(2))).tolist() == [2.0, 2.0]
    assert client.statistics().calls == before + 1


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "4"])
def test_a_batch_has_a_size(size: Any) -> None:
    """A positive integer."""
    with pytest.raises(ConfigurationError, match="positive integer"):
        vmap_auto(score, size)


def test_options_that_name_arguments_are_refused() -> None:
    """The arguments of a batch are others than those of the function."""
    with pytest.raises(ConfigurationError, match="static_argnames has no meaning for batches"):
        vmap_auto(score, 4, static_argnames="scale")


def test_clients_without_jax_batch_as_well(live: LiveServer) -> None:
    """They see shapes in dicts, lists, tuples and named tuples."""
    program = """
import json, sys
from typing import NamedTuple
import numpy as np
from jaxd import vmap_auto

class Pair(NamedTuple):
    x: object
    y: object

def score(problem, pairs):
    assert problem["mode"] == "sum"
    return problem["x"].sum() + problem["b"] + pairs[0].x * pairs[0].y

batched = vmap_auto(score, 4)
found = []
for n in (4, 3, 6):
    problem = {"x": np.ones((n, 2), "f4"), "b": 1, "mode": "sum", "a": np.ones(7)}
    found.append(batched(problem, [Pair(np.arange(n), 2)]).tolist())
assert "jax" not in sys.modules
print(json.dumps(found))
"""
    ended = run_light(live, program)
    assert json.loads(ended.stdout) == [[3.0 + 2 * i for i in range(n)] for n in (4, 3, 6)]
