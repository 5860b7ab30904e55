"""What the Chinese edition of "JAX for the Impatient" teaches, from a process without jax.

The techniques are those of jax_for_the_impatient.py. Here each function imports jax where it runs,
on the server: this program has only numpy, starts at once, and gets numpy arrays.

The edition prints two loss columns. The second one, of trees, is that of a law of shape (5, 10),
as an older version of the tutorial had it, and comes back with the random numbers of that time
(`config=`). The first one, 10.971258 after step 0 and 0.011691 after step 100, is of the same law
as in the English edition, where it is 10.971408 and 0.011577. It comes from a device that
multiplies in bfloat16: with products rounded so, float32 on a CPU gives 10.97124 and 0.01172.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxd import persistent_call

AS_PRINTED = {"jax_threefry_partitionable": False}
SAMPLES, X_DIM, Y_DIM = 20, 10, 5
RATE, STEPS = np.float32(0.3), 101

# ── arrays and random numbers ────────────────────────────────────────────────────────────────────


@persistent_call
def product(left: Any, right: Any) -> Any:
    return left @ right  # arrays of jax by the time it runs, whatever was passed


@persistent_call
def changed(table: Any) -> Any:
    corner = table.at[0, 0]
    return corner.set(3.0), corner.add(1.0), corner.multiply(2.0), corner.min(0.0), corner.max(9.0)


@persistent_call(static_argnames="count", config=AS_PRINTED)
def keys_and_draws(seed: Any, count: int) -> Any:
    import jax

    keys = jax.random.split(jax.random.PRNGKey(seed), count)
    return keys, jax.vmap(lambda key: jax.random.normal(key, (1,)))(keys)


def arrays() -> Any:
    """numpy goes there and numpy comes back; nothing that is passed is changed."""
    table = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], np.float32)
    return product(table, np.ones((4, 4), np.float32)), changed(table), table


def random_numbers() -> Any:
    """A key is an array of two numbers, made and split on the server."""
    return keys_and_draws(0, count=2)


# ── derivatives ──────────────────────────────────────────────────────────────────────────────────


@persistent_call
def half_squares(x: Any) -> Any:
    return x * x / 2.0


@persistent_call
def half_square(x: Any) -> Any:
    return half_squares(x).sum()


def derivatives() -> Any:
    """The derivative of half the square is the number itself, whichever way it is taken.

    Transformations have names of their own here, so that nobody needs jax to ask for one.
    """
    x, direction = np.linspace(-1, 1, 5, dtype="f4"), np.ones(5, "f4")
    value, pull_back = half_squares.vjp(x)
    return {
        "gradient": half_square.grad()(x),
        "jvp": half_squares.jvp((x,), (direction,)),
        "vjp": (value, pull_back(direction)),
    }


# ── jit and vmap ─────────────────────────────────────────────────────────────────────────────────


@persistent_call
def selu(x: Any, alpha: Any = 1.67, scale: Any = 1.05) -> Any:
    import jax.numpy as jnp

    return scale * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)


@persistent_call
def apply_matrix(matrix: Any, vector: Any) -> Any:
    return matrix @ vector


apply_to_each = apply_matrix.vmap(in_axes=(None, 0))


def compiled_and_vectorized() -> Any:
    """Both transformations belong to the function, so the caller needs no jax for them."""
    rng = np.random.default_rng(0)
    matrix, batch = rng.normal(size=(15, 10)), rng.normal(size=(5, 10))
    each = apply_to_each(matrix.astype(np.float32), batch.astype(np.float32))
    return np.asarray(selu(np.linspace(-3, 3, 1_000_000, dtype="f4")))[::100_000], each


# ── trees and linear regression ──────────────────────────────────────────────────────────────────


@persistent_call
def squared_and_summed(tree: Any) -> Any:
    import jax

    squares = jax.tree.map(lambda x: x * x, tree)
    return squares, jax.tree.map(lambda x, y: x + y, tree, squares)


def trees() -> Any:
    """Containers keep their kind; numbers come back as arrays without axes."""
    return squared_and_summed([1, {"k1": 2, "k2": (3, 4)}, 5])


def mean_loss(params: Any, xs: Any, ys: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def loss_of_one(x: Any, y: Any) -> Any:
        error = y - (params["W"] @ x + params["b"])
        return jnp.inner(error, error) / 2.0

    return jnp.mean(jax.vmap(loss_of_one)(xs, ys))


@persistent_call(config=AS_PRINTED)
def made_data(seed: Any) -> Any:
    from jax import random

    first, second = random.split(random.PRNGKey(seed))
    weights, bias = random.normal(first, (Y_DIM, X_DIM)), random.normal(second, (Y_DIM,))
    for_x, for_noise = random.split(first)
    xs = random.normal(for_x, (SAMPLES, X_DIM))
    return xs, xs @ weights.T + bias + 0.1 * random.normal(for_noise, (SAMPLES, Y_DIM))


@persistent_call(donate_argnums=0)
def step(params: Any, xs: Any, ys: Any, rate: Any) -> Any:
    """The next parameters, and the loss before."""
    import jax

    loss, slopes = jax.value_and_grad(mean_loss)(params, xs, ys)
    return jax.tree.map(lambda value, slope: value - rate * slope, params, slopes), loss


def regression_with_trees() -> Any:
    """11.10 falls to 0.01158, as printed."""
    xs, ys = made_data(0)
    params = {"W": np.zeros((Y_DIM, X_DIM), np.float32), "b": np.zeros(Y_DIM, np.float32)}
    losses = []  # before the first step, after the first one, …
    for _ in range(STEPS + 1):
        params, loss = step(params, xs, ys, RATE)
        losses.append(loss)
    return {f"step {number}": losses[number + 1] for number in range(0, STEPS, 5)}


TECHNIQUES = (
    arrays,
    random_numbers,
    derivatives,
    compiled_and_vectorized,
    trees,
    regression_with_trees,
)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
