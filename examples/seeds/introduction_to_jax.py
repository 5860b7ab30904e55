"""What the post "An introduction to JAX" teaches, each piece as a call to the server.

A tiny network by hand, whose numbers are those that the post prints, and the same in flax. The
post's random parameters are those of another flax and an older jax, and cannot be had any more.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxd import persistent_call

INPUT = jnp.array([[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
KERNELS = [
    jnp.array([[9.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]),
    jnp.array([[1.0], [-10.0], [0.1], [2.0]]),
]
# The post does not say what it was trained for. Its gradients are those of two ones among three, in
# a flat array, which numpy's rules set against each row of the column that the network returns.
TARGET = jnp.array([0.0, 1.0, 1.0])
SMALL = 1e-8

# ── a network by hand ────────────────────────────────────────────────────────────────────────────


@persistent_call
def products(left: Any, right: Any) -> Any:
    return jnp.matmul(left, right), jnp.dot(left, right), left @ right


@persistent_call
def predict(x: Any, kernels: Any) -> Any:
    *hidden, last = kernels
    for kernel in hidden:
        x = jax.nn.relu(x @ kernel)
    return jax.nn.sigmoid(x @ last)


@persistent_call
def loss_of(x: Any, target: Any, kernels: Any) -> Any:
    """Binary cross entropy."""
    found = predict(x, kernels)
    each = target * jnp.log(found + SMALL) + (1 - target) * jnp.log(1 - found + SMALL)
    return -jnp.mean(each)


@persistent_call
def updated(x: Any, target: Any, kernels: Any) -> Any:
    slopes = jax.grad(loss_of, argnums=2)(x, target, kernels)
    return [kernel - 0.1 * slope for kernel, slope in zip(kernels, slopes, strict=True)]


@persistent_call
def curvature(x: Any, target: Any, last: Any) -> Any:
    """The second derivative along the last kernel: the gradient of a gradient."""

    def loss_at(scale: Any) -> Any:
        return loss_of(x, target, [KERNELS[0], last * scale])

    return jax.grad(jax.grad(loss_at))(1.0)


def matrices() -> Any:
    """One product, written three ways. (The post prints 20 for 2 * 9 + 3 * 1.)"""
    return products(INPUT, KERNELS[0])


def forward_pass() -> Any:
    """A list of kernels is an argument like any other."""
    return predict(INPUT, KERNELS), loss_of(INPUT, TARGET, KERNELS)


def backward_pass() -> Any:
    """By the first argument, by another one, and twice."""
    first, last = KERNELS
    by_input = loss_of.grad()(INPUT, TARGET, KERNELS)
    by_kernels = loss_of.grad(argnums=2)(INPUT, TARGET, [first, last])
    return by_input, by_kernels, curvature(INPUT, TARGET, last)


def update_step() -> Any:
    """One step of gradient descent."""
    return updated(INPUT, TARGET, KERNELS)


# ── the same in flax ─────────────────────────────────────────────────────────────────────────────


class Net(nn.Module):
    """Two layers. The class is this file's own, and travels with the functions that use it."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Dense(4)(x))
        return nn.sigmoid(nn.Dense(1)(x))


@persistent_call
def initialized(key: Any, x: Any) -> Any:
    return Net().init(key, x)


@persistent_call
def applied(variables: Any, x: Any) -> Any:
    return Net().apply(variables, x)


@persistent_call
def applied_to_each(variables: Any, xs: Any) -> Any:
    return jax.vmap(lambda x: Net().apply(variables, x))(xs)


def flax_network() -> Any:
    """Parameters do not depend on how many rows there are; `vmap` adds the batch's axis."""
    key = jax.random.PRNGKey(0)
    variables = initialized(key, INPUT)
    same = initialized(key, INPUT[0])
    return variables, same, applied(variables, INPUT), applied_to_each(variables, INPUT)


TECHNIQUES = (matrices, forward_pass, backward_pass, update_step, flax_network)

if __name__ == "__main__":
    for technique in TECHNIQUES:
        print(f"{technique.__name__}: {technique.__doc__}\n{technique()}\n")
