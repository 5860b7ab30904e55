"""What the tutorial "JAX Advanced Techniques" teaches, each piece as a call to the server.

What it teaches of code that is not jax's own is in advanced_foreign_code.py.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxd import persistent_call, vmap_auto

# ── trees: what is batched, what is static ───────────────────────────────────────────────────────


def cost(problem: Any) -> Any:
    """The cost of a control problem, for one start; it knows nothing of batches."""

    def advance(state: Any, force: Any) -> Any:
        return problem["A"] @ state + force, jnp.sum(state**2)

    end, along = jax.lax.scan(advance, problem["start"], problem["forces"])
    return problem["weights"]["along"] * along.sum() + problem["weights"]["end"] * end @ end


costs = vmap_auto(cost, batch_size=7)


def automatic_batching() -> Any:
    """Leaves with the batch's size are batched, the others shared; nobody says which."""
    rng = np.random.default_rng(0)
    problem = {
        "A": np.array([[1.0, 0.1], [0.0, 0.9]], np.float32),
        "start": rng.normal(size=(7, 2)).astype(np.float32),
        "forces": rng.normal(size=(7, 5, 2)).astype(np.float32),
        "weights": {"along": 1.0, "end": 10.0},
    }
    return costs(problem)


@persistent_call(static_argnames="affine")
def linear_transform(x: Any, weights: Any, bias: Any, affine: bool = True) -> Any:
    return x @ weights + bias if affine else x @ weights


def flags() -> Any:
    """A flag that changes the program is static: one program for each value."""
    x, weights, bias = np.ones((2, 3), "f4"), np.ones((3, 2), "f4"), np.full(2, 0.5, "f4")
    return linear_transform(x, weights, bias), linear_transform(x, weights, bias, affine=False)


class Layer:
    """`self` is no array, and neither is what it holds: both are static, by what is in them."""

    def __init__(self, activation: str) -> None:
        self.activation = activation

    @persistent_call  # static="auto": what jax cannot trace is static, wherever it stands
    def forward(self, params: Any, x: Any, options: Any) -> Any:
        y = x @ params["w"] * options["scale"]
        return {"tanh": jnp.tanh, "relu": jax.nn.relu}[options["activation"]](y)

    def __call__(self, params: Any, x: Any) -> Any:
        return self.forward(params, x, {"activation": self.activation, "scale": 2.0})


def automatic_static_arguments() -> Any:
    """Text deep in a tree of options decides what is compiled."""
    params, x = {"w": np.eye(3, dtype="f4")}, np.linspace(-1, 1, 6, dtype="f4").reshape(2, 3)
    return Layer("tanh")(params, x), Layer("relu")(params, x)


# ── random numbers ───────────────────────────────────────────────────────────────────────────────


@persistent_call
def noisy(data: Any, key: Any) -> Any:
    """Noise of its own for each row, and the key to go on with."""
    key, *row_keys = jax.random.split(key, len(data) + 1)

    def with_noise(row: Any, key: Any) -> Any:
        return row + jax.random.normal(key, row.shape)

    return jax.vmap(with_noise)(data, jnp.stack(row_keys)), key


def keys_for_a_batch() -> Any:
    """One more key than there are rows: the first is the one to go on with."""
    return noisy(np.ones((4, 3), "f4"), jax.random.PRNGKey(7))


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


@persistent_call
def chosen(yes: Any, a: Any, b: Any) -> Any:
    return {
        "where": jnp.where(yes, a * 2.0, b * 2.0),  # both are computed, one is taken
        "select": jax.lax.select(jnp.full(a.shape, yes), a * 2.0, b * 2.0),
        "cond": jax.lax.cond(yes, lambda: a * 2.0, lambda: b * 2.0),  # one is computed
        "cond of": jax.lax.cond(yes, lambda x, _: x * 2.0, lambda _, x: x * 2.0, a, b),
    }


@persistent_call
def slopes_of_root(x: Any) -> Any:
    """The gradient at 0 of what is 0 there: `where` lets the other branch's NaN through."""
    by_where = jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))
    by_cond = jax.grad(lambda x: jax.lax.cond(x > 0, jnp.sqrt, jnp.zeros_like, x))
    return by_where(x), by_cond(x)


def decisions() -> Any:
    """An `if` on a value that is not known yet."""
    a, b = jnp.arange(3.0), -jnp.arange(3.0)
    return chosen(True, a, b), chosen(False, a, b), slopes_of_root(0.0)


# ── loops ────────────────────────────────────────────────────────────────────────────────────────

MOVE = np.array([[1.0, 0.1], [0.0, 0.9]], np.float32)
START = np.array([0.0, 1.0], np.float32)


@persistent_call
def scaled_fibonacci(factors: Any) -> Any:
    def following(pair: Any, factor: Any) -> Any:
        new = factor * pair[1] + pair[0]
        return (pair[1], new), new

    return jax.lax.scan(following, (jnp.array(1.0), jnp.array(1.0)), factors)[1]


@persistent_call
def moved(start: Any, times: Any) -> Any:
    return jax.lax.fori_loop(0, times, lambda _, x: MOVE @ x, start)


@persistent_call
def moved_beyond(start: Any, limit: Any) -> Any:
    """How many steps it takes, and where they end."""
    return jax.lax.while_loop(
        lambda state: state[1][0] < limit,
        lambda state: (state[0] + 1, MOVE @ state[1]),
        (0, start),
    )


@persistent_call(static_argnames="at_most")
def moved_beyond_with_history(start: Any, limit: Any, at_most: int) -> Any:
    """The same, with all places on the way: a loop with a bound, which stands still at the end."""

    def step(state: Any, _: Any) -> Any:
        number, x = state
        state = jax.lax.cond(x[0] < limit, lambda: (number + 1, MOVE @ x), lambda: (number, x))
        return state, state

    return jax.lax.scan(step, (0, start), length=at_most)


def loops() -> Any:
    """With a fixed number of steps and all results; with the last one; until something is so."""
    factors = np.random.default_rng(6).normal(size=10).astype("f4")
    history = moved_beyond_with_history(START, 0.5, at_most=20)
    return scaled_fibonacci(factors), moved(START, 10), moved_beyond(START, 0.5), history


TECHNIQUES = (
    automatic_batching,
    flags,
    automatic_static_arguments,
    keys_for_a_batch,
    decisions,
    loops,
)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
