"""A user's module with equinox models."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

import abc
import typing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

DATA = np.ones((2, 3), np.float32)


class Abstract(eqx.Module):
    name: eqx.AbstractVar[str]
    act: typing.Callable = eqx.field(static=True, default=jnp.tanh)

    @abc.abstractmethod
    def __call__(self, x: Any) -> Any: ...


class Layer(Abstract):
    weight: jax.Array
    bias: jax.Array
    name: str = eqx.field(static=True)

    def __init__(self, size: int, key: Any) -> None:
        self.weight = jax.random.normal(key, (size, size))
        self.bias = jnp.zeros(size)
        self.name = "layer"
        self.act = jnp.tanh

    def __call__(self, x: Any) -> Any:
        return self.act(self.weight @ x + self.bias)


class Scaled(Layer):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) * 2


class Deep(eqx.Module):
    layers: list
    scale: float = eqx.field(converter=float, default=2)

    @eqx.filter_jit
    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def check() -> Any:
    """What a program finds that trains the model."""
    first, second = jax.random.split(jax.random.key(0), 2)
    model = Deep([Layer(3, first), Scaled(3, second)])
    optimizer = optax.sgd(0.1)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(model: Any) -> Any:
        return jnp.sum(jax.vmap(model)(DATA) ** 2)

    for _ in range(3):
        value, gradient = loss(model)
        updates, state = optimizer.update(gradient, state)
        model = eqx.apply_updates(model, updates)
    changed = eqx.tree_at(lambda tree: tree.layers[0].bias, model, jnp.ones(3))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    same = [bool(eqx.tree_equal(model, model)), type(model.scale).__name__]
    return [float(value), float(changed(DATA[0]).sum()), names, *same, _refused()]


def _refused() -> bool:
    try:
        Abstract()
    except TypeError:
        return True
    return False
