"""A user's module with flax.nnx models."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

DATA = np.ones((2, 3), np.float32)


class Scale(nnx.Param):
    pass


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.scale = Scale(jnp.ones(4))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.linear(x)) * self.scale[...]


class NoTree(nnx.Module, pytree=False):
    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(2))


class Plain(nnx.Pytree):
    def __init__(self) -> None:
        self.weight = jnp.ones(2)
        self.name = "a"


def check() -> Any:
    """What a program finds that trains the model and takes it apart."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, gradient = nnx.value_and_grad(lambda net: (net(DATA) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return value

    losses = [float(step(model, optimizer)) for _ in range(3)]
    definition, state = nnx.split(model)
    scales = nnx.split(model, Scale, ...)[1]
    return [
        losses,
        type(nnx.merge(definition, state)).__name__,
        sorted(str(path) for path, _ in nnx.to_flat_state(state)),
        [len(jax.tree.leaves(scales)), len(jax.tree.leaves(nnx.split(NoTree())[1]))],
        [type(leaf).__name__ for leaf in jax.tree.leaves(NoTree())],
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(Plain())],
    ]
