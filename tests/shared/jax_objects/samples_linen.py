"""A user's module with flax.linen models, flax.struct classes and a training state."""

# mypy: ignore-errors
# What a user writes, around libraries without types.

from typing import Any

import flax.linen as nn
import flax.serialization
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

DATA = np.ones((2, 3), np.float32)


class Mlp(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(self.width)(nn.relu(nn.Dense(self.width)(x)))


class Whole(Mlp):
    def setup(self) -> None:
        self.first = Mlp(3)
        self.last = nn.Dense(2)

    @nn.nowrap
    def factor(self) -> float:
        return 2.0

    def __call__(self, x: Any) -> Any:
        return self.last(self.first(x)) * self.factor()


class State(train_state.TrainState):
    extra: Any = None
    label: str = flax.struct.field(pytree_node=False, default="z")


@flax.struct.dataclass
class Decorated:
    a: Any
    m: int = flax.struct.field(pytree_node=False, default=3)


class Derived(flax.struct.PyTreeNode):
    a: Any
    m: int = flax.struct.field(pytree_node=False, default=3)


class DerivedTwice(Derived):
    b: Any = None


def check() -> Any:
    """What a program finds that trains the model and uses the classes."""
    return [_train(), [_facts(cls(DATA)) for cls in (Decorated, Derived, DerivedTwice)]]


def _train() -> Any:
    model = Whole()
    state = State.create(
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), DATA),
        tx=optax.chain(optax.clip(1.0), optax.adam(optax.linear_schedule(0.1, 0.01, 10))),
        extra=jnp.ones(2),
    )

    @jax.jit
    def step(state: Any) -> Any:
        def loss(params: Any) -> Any:
            return (state.apply_fn(params, DATA) ** 2).sum()

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    for _ in range(3):
        state, value = step(state)
    saved = flax.serialization.to_state_dict(state)
    restored = flax.serialization.from_state_dict(state, saved)
    equal = [model == Whole(), hash(model) == hash(Whole()), restored.label, repr(model)]
    return [float(value), sorted(saved), len(jax.tree.leaves(state)), *equal]


def _facts(value: Any) -> Any:
    doubled = jax.jit(lambda tree: tree.replace(a=tree.a * 2).a.sum() * tree.m)(value)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(value)]
    return [float(doubled), names, sorted(flax.serialization.to_state_dict(value))]
