"""What the notes "JAX Notes" touch on, each piece as a call to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxd import persistent_call

# ── compiled, and what cannot be ─────────────────────────────────────────────────────────────────


def norm(x: Any) -> Any:
    x = x - x.mean(0)
    return x / x.std(0)


compiled_norm = persistent_call(norm)


@persistent_call
def negatives(x: Any) -> Any:
    return x[x < 0]


@persistent_call(static_argnames="at_most")
def first_negatives(x: Any, at_most: int) -> Any:
    return x[jnp.nonzero(x < 0, size=at_most, fill_value=0)[0]]


def signed(x: Any, negative: Any) -> Any:
    return -x if negative else x


compiled_signed = persistent_call(signed)
static_signed = persistent_call(signed, static_argnums=1)


def _refusal(function: Callable[..., Any], *args: Any) -> str:
    """The type of jax's error, which is the caller's own, and its first line."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  whatever it is: it is shown
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "none"


def normalized() -> Any:
    """The same numbers as without a compiler, up to rounding."""
    table = jnp.array(np.random.RandomState(0).rand(1000, 10))
    compiled = compiled_norm(table)
    return compiled, bool(np.allclose(compiled, norm(table), atol=1e-6))


def dynamic_shapes() -> Any:
    """A shape that depends on values is refused; one with a bound is not."""
    x = jnp.array([0.5, -1.0, 2.0, -3.0, 1.0])
    return _refusal(negatives, x), first_negatives(x, 3)


def static_arguments() -> Any:
    """An `if` on a traced value is refused; on a static one it makes a program for each value."""
    refusal = _refusal(compiled_signed, 1, True)
    return refusal, static_signed(1, True), static_signed(1, False), static_signed(2.5, True)


# ── what jax sees ────────────────────────────────────────────────────────────────────────────────


@persistent_call
def shifted_product(x: Any, y: Any) -> Any:
    return jnp.dot(x + 1, y + 1)


@persistent_call
def count_and_sum(x: Any) -> Any:
    """numpy where the answer is known from the shape, jax.numpy where it is not."""
    return x.reshape(np.prod(x.shape)).sum() / np.prod(x.shape)


def traced() -> Any:
    """The operations that jax finds in a function: the server traces it, and runs nothing."""
    x, y = np.ones((3, 4), "f4"), np.ones(4, "f4")
    return shifted_product.jaxpr(x, y), shifted_product(x, y), count_and_sum(x)


# ── derivatives ──────────────────────────────────────────────────────────────────────────────────


def wave(x: Any) -> Any:
    return jnp.sum(jnp.sin(x) * x)


def waves(x: Any) -> Any:
    return jnp.sin(x) * x[::-1]


@persistent_call
def all_derivatives(x: Any, direction: Any) -> Any:
    return {
        "gradient": jax.grad(wave)(x),
        "jacobian": jax.jacobian(waves)(x),
        "forward": jax.jacfwd(waves)(x),
        "backward": jax.jacrev(waves)(x),
        "hessian": jax.hessian(wave)(x),
        "along": jax.jvp(waves, (x,), (direction,)),
        "weighted": jax.vjp(waves, x)[1](direction),
    }


@persistent_call
def third_derivative(x: Any) -> Any:
    """Transformations take what transformations return, compiled or not."""
    return jax.grad(jax.jit(jax.grad(jax.jit(jax.grad(wave)))))(x)


def derivatives() -> Any:
    """A vector for a scalar function, a matrix for a vector function, and products with it."""
    x = jnp.linspace(0.1, 1.2, 4)
    return all_derivatives(x, jnp.ones(4)), third_derivative(0.3)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


def apply_matrix(matrix: Any, x: Any) -> Any:
    return jnp.dot(matrix, x)


@persistent_call
def one_by_one(matrix: Any, xs: Any) -> Any:
    return jnp.stack([apply_matrix(matrix, x) for x in xs])


@persistent_call
def by_hand(matrix: Any, xs: Any) -> Any:
    return jnp.dot(xs, matrix.T)


@persistent_call
def by_vmap(matrix: Any, xs: Any) -> Any:
    return jax.vmap(apply_matrix, in_axes=(None, 0))(matrix, xs)


def batches() -> Any:
    """A loop, a product thought out by hand, and `vmap`, which finds that product by itself."""
    rng = np.random.default_rng(1)
    matrix, xs = rng.normal(size=(150, 100)).astype("f4"), rng.normal(size=(10, 100)).astype("f4")
    results = [each(matrix, xs) for each in (one_by_one, by_hand, by_vmap)]
    return results, [bool(np.allclose(results[0], each, atol=1e-4)) for each in results]


# ── random numbers ───────────────────────────────────────────────────────────────────────────────


@persistent_call
def next_number(key: Any) -> Any:
    key, once = jax.random.split(key)
    return key, jax.random.normal(once)


def random_numbers() -> Any:
    """Every key is used once: the call that uses it returns the next one."""
    key, numbers = jax.random.key(1), []
    for _ in range(3):
        key, number = next_number(key)
        numbers.append(number)
    return key, numbers


TECHNIQUES = (
    normalized,
    dynamic_shapes,
    static_arguments,
    traced,
    derivatives,
    batches,
    random_numbers,
)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
