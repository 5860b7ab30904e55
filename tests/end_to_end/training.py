"""A training loop of flax and optax as one writes it for `jax.jit`, small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
import pytest

nn: Any = pytest.importorskip("flax.linen")
optax: Any = pytest.importorskip("optax")
train_state: Any = pytest.importorskip("flax.training.train_state")

WIDTH: Final = 160
"""A matrix of so many rows and columns is too large to come home by itself."""

BATCH: Final = 8


class Network(nn.Module):  # type: ignore[misc]  # flax is Any here
    """Two layers."""

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(nn.relu(nn.Dense(WIDTH)(x)))


def train_step(state: Any, batch: Any) -> Any:
    """The next state, and the loss."""

    def loss_of(params: Any) -> Any:
        return ((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


network: Any = Network()
adam: Any = optax.adam(1e-2)


def first_state() -> Any:
    """Parameters and optimizer, the same each time."""
    params = network.init(jax.random.key(0), np.zeros((1, WIDTH), np.float32))["params"]
    return train_state.TrainState.create(apply_fn=network.apply, params=params, tx=adam)


def batches(count: int) -> list[dict[str, Any]]:
    """Numbers, and something to learn about them."""
    numbers = np.random.default_rng(0)
    made = [numbers.standard_normal((BATCH, WIDTH), np.float32) for _ in range(count)]
    return [{"x": x, "y": np.tanh(x[:, :1])} for x in made]


BATCH_BYTES: Final = BATCH * (WIDTH + 1) * 4


def train(step: Callable[[Any, Any], Any], given: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The last state and all losses, as the step has returned them."""
    state, losses = first_state(), []
    for batch in given:
        state, loss = step(state, batch)
        losses.append(loss)
    return state, losses


def assert_same(found: Any, expected: Any) -> None:
    """Both trees have the same structure and, but for the order of sums, numbers."""
    assert bool(jax.tree.structure(found) == jax.tree.structure(expected))  # type: ignore[operator]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=1e-6)
