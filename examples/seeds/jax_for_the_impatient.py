"""What the tutorial "JAX for the Impatient" teaches, each piece as a call to the server.

The tutorial's random numbers are those of an older jax. Since version 0.5 the setting
`jax_threefry_partitionable` is on by default, and the same keys give other numbers; with it off,
for one function by `config=`, the old ones come back, and with them the loss column that the
tutorial prints.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxd import persistent_call

AS_PRINTED = {"jax_threefry_partitionable": False}
SAMPLES, X_DIM, Y_DIM = 20, 10, 5
RATE, STEPS = 0.3, 101

# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@persistent_call
def product(left: Any, right: Any) -> Any:
    return jnp.dot(left, right)


@persistent_call
def with_new_corner(table: Any, value: Any) -> Any:
    return table.at[0, 0].set(value)  # a new array; no array of jax ever changes


@persistent_call
def updates(table: Any) -> Any:
    corner = table.at[0, 0]
    return {
        "add": corner.add(10),
        "multiply": corner.mul(10),
        "min": corner.min(-1),
        "max": corner.max(99),
    }


def arrays() -> Any:
    """The interface is numpy's; arrays of numpy and of jax mix."""
    table = jnp.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    row_sums = product(table, jnp.ones((4, 4)))
    from_numpy = product(np.arange(8.0).reshape(2, 4), jnp.ones((4, 4)))  # float64: jax makes it 32
    return row_sums, from_numpy, np.array(row_sums)


def immutability() -> Any:
    """What other languages do in place is an expression here."""
    table = jnp.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    updated = with_new_corner(table, 3.0)
    try:
        updated[0, 0] = 3.0
    except TypeError as error:
        refusal = type(error).__name__
    return table, updated, updates(table), refusal


# ── random numbers ───────────────────────────────────────────────────────────────────────────────


def drawn(key: Any) -> Any:
    return jax.random.normal(key, (1,))


draw = persistent_call(drawn, config=AS_PRINTED)
draw_today = persistent_call(drawn)


@persistent_call(static_argnames="count", config=AS_PRINTED)
def split(key: Any, count: int = 2) -> Any:
    return jax.random.split(key, count)


def random_numbers() -> Any:
    """A key gives the same number each time, so it is split before each use."""
    key = jax.random.PRNGKey(0)
    same = [draw(key) for _ in range(3)]
    today = draw_today(key)  # 1.6226422 where the tutorial has -0.20584226
    key, subkey = split(key)
    later = draw(key), draw(subkey)
    key, *subkeys = split(key, 4)
    return same, today, later, key, subkeys


# ── derivatives ──────────────────────────────────────────────────────────────────────────────────


def half_square(x: Any) -> Any:
    """A scalar; its gradient is `x` itself."""
    return jnp.dot(x.T, x) / 2.0


def half_squares(x: Any) -> Any:
    """A vector; its Jacobian is the diagonal matrix of `x`."""
    return jnp.multiply(x, x) / 2.0


@persistent_call
def gradient(x: Any) -> Any:
    return half_square(x), jax.grad(half_square)(x)


@persistent_call
def forward(x: Any, direction: Any) -> Any:
    return jax.jvp(half_squares, (x,), (direction,))


@persistent_call
def backward(x: Any, weights: Any) -> Any:
    value, pull_back = jax.vjp(half_squares, x)
    return value, pull_back(weights)[0]


def derivatives() -> Any:
    """Gradient, derivative along a direction, and weighted sum of the rows of the Jacobian."""
    x = jnp.array([0.5, -1.25, -0.25, 1.5, 0.75])
    return gradient(x), forward(x, jnp.ones(5)), backward(x, jnp.ones(5))


# ── jit and vmap ─────────────────────────────────────────────────────────────────────────────────


@persistent_call
def selu(x: Any, alpha: Any = 1.67, scale: Any = 1.05) -> Any:
    return scale * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)


slope_of_selu = selu.grad().vmap()  # jax.vmap(jax.grad(selu)), made on the server


def compiled_selu() -> Any:
    """The server holds it compiled; a million numbers stay there until somebody looks."""
    points = jnp.linspace(-3.0, 3.0, 1_000_000)
    return selu(points)[::100_000], slope_of_selu(points[::100_000])


MATRIX = np.random.default_rng(0).normal(size=(15, 10)).astype(np.float32)


def apply_matrix(vector: Any) -> Any:
    """Knows nothing of batches."""
    return jnp.dot(MATRIX, vector)


apply_to_one = persistent_call(apply_matrix)
apply_to_each = apply_to_one.vmap()


def vectorized() -> Any:
    """Written for one vector, called with five."""
    batch = np.random.default_rng(1).normal(size=(5, 10)).astype(np.float32)
    return apply_to_one(batch[0]), apply_to_each(batch)


# ── linear regression ────────────────────────────────────────────────────────────────────────────


def predict(weights: Any, bias: Any, x: Any) -> Any:
    return jnp.dot(x, weights) + bias


@persistent_call(config=AS_PRINTED)
def made_data(seed: Any) -> Any:
    """The law that is to be found again, and noisy samples of it."""
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    weights = jax.random.normal(first, (X_DIM, Y_DIM))
    bias = jax.random.normal(second, (Y_DIM,))
    for_x, for_noise = jax.random.split(first)
    x = jax.random.normal(for_x, (SAMPLES, X_DIM))
    noise = 0.1 * jax.random.normal(for_noise, (SAMPLES, Y_DIM))
    return weights, bias, x, predict(weights, bias, x) + noise


@persistent_call
def mean_loss(weights: Any, bias: Any, xs: Any, ys: Any) -> Any:
    def loss_of_one(x: Any, y: Any) -> Any:
        error = y - predict(weights, bias, x)
        return jnp.inner(error, error) / 2.0

    return jnp.mean(jax.vmap(loss_of_one)(xs, ys))


@persistent_call(donate_argnames=("weights", "bias"))
def step(weights: Any, bias: Any, xs: Any, ys: Any, rate: Any) -> Any:
    for_weights, for_bias = jax.grad(mean_loss, argnums=(0, 1))(weights, bias, xs, ys)
    return weights - rate * for_weights, bias - rate * for_bias


def regression() -> Any:
    """The tutorial prints 0.0236 for the true law, 10.97 after step 0 and 0.01158 after 100."""
    weights, bias, xs, ys = made_data(0)
    column = {"true": mean_loss(weights, bias, xs, ys)}
    weights, bias = jnp.zeros_like(weights), jnp.zeros_like(bias)
    for number in range(STEPS):
        weights, bias = step(weights, bias, xs, ys, RATE)
        if number % 5 == 0:
            column[f"step {number}"] = mean_loss(weights, bias, xs, ys)
    return column


# ── the same with trees ──────────────────────────────────────────────────────────────────────────


@persistent_call
def squared_and_summed(tree: Any) -> Any:
    squares = jax.tree.map(lambda x: x * x, tree)
    return squares, jax.tree.map(lambda x, y: x + y, tree, squares)


@persistent_call
def tree_loss(params: Any, xs: Any, ys: Any) -> Any:
    def loss_of_one(x: Any, y: Any) -> Any:
        error = y - (jnp.dot(x, params["W"]) + params["b"])
        return jnp.inner(error, error) / 2.0

    return jnp.mean(jax.vmap(loss_of_one)(xs, ys))


@persistent_call(donate_argnums=0)
def tree_step(params: Any, xs: Any, ys: Any, rate: Any) -> Any:
    # Inside of another one, a persistent function is a function like any other.
    loss, slopes = jax.value_and_grad(tree_loss)(params, xs, ys)  # the loss before the step
    return jax.tree.map(lambda value, slope: value - rate * slope, params, slopes), loss


def trees() -> Any:
    """Nested lists, tuples and dicts go there and come back as what they are."""
    return squared_and_summed([1, {"k1": 2, "k2": (3, 4)}, 5])


def regression_with_trees() -> Any:
    """The parameters are one tree, and so is the gradient; the same column, and 101 steps more.

    The tutorial goes on with `value_and_grad` where it had ended: 0.01158 falls to 0.01157.
    """
    _, _, xs, ys = made_data(0)
    params = {"W": jnp.zeros((X_DIM, Y_DIM)), "b": jnp.zeros(Y_DIM)}
    first = tree_loss.value_and_grad()(params, xs, ys)
    losses = []  # before the first step, after the first one, …
    for _ in range(2 * STEPS):
        params, loss = tree_step(params, xs, ys, RATE)
        losses.append(loss)
    column = {f"step {number}": losses[number + 1] for number in range(0, STEPS, 5)}
    further = {f"step {number}": losses[number + STEPS] for number in range(0, STEPS, 5)}
    return first, column, further


TECHNIQUES = (
    arrays,
    immutability,
    random_numbers,
    derivatives,
    compiled_selu,
    vectorized,
    regression,
    trees,
    regression_with_trees,
)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
