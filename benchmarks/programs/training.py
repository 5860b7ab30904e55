"""Training as one writes it with flax and optax: an MLP with residuals, 200 arrays of state."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

# By name: whoever has no flax checks the types of this file all the same.
nn: Any = importlib.import_module("flax.linen")
optax: Any = importlib.import_module("optax")
train_state: Any = importlib.import_module("flax.training.train_state")

WIDTH, DEPTH, CLASSES, BATCH, BATCHES = 128, 33, 10, 64, 16


class Network(nn.Module):  # type: ignore[misc]  # flax is Any here
    """Residual blocks of one layer each."""

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: Any) -> Any:
        """Logits, float32[batch, classes]."""
        x = nn.Dense(WIDTH)(x)
        for _ in range(DEPTH - 2):
            x = x + 0.1 * nn.Dense(WIDTH)(nn.relu(x))
        return nn.Dense(CLASSES)(x)


def train_step(state: Any, batch: Any) -> Any:
    """The next state, and the loss."""

    def loss_of(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def first_state() -> Any:
    """Parameters, and the moments of Adam."""
    network = Network()
    params = jax.jit(network.init)(jax.random.key(0), np.zeros((1, WIDTH), np.float32))
    return train_state.TrainState.create(
        apply_fn=network.apply, params=params["params"], tx=optax.adam(1e-3)
    )


def make_batches() -> Iterator[dict[str, Any]]:
    """Numbers, and which of the first ten is the largest."""
    random = np.random.default_rng(0)
    for _ in range(BATCHES):
        x = random.standard_normal((BATCH, WIDTH), np.float32)
        yield {"x": x, "y": x[:, :CLASSES].argmax(axis=1).astype(np.int32)}


class Training:
    """One run of it.

    Args:
        step: `train_step`, decorated.

    Attributes:
        state: where it is.
        losses: what it has looked at: that of each tenth step.
    """

    def __init__(self, step: Callable[[Any, Any], Any]) -> None:
        self._step = step
        self._batches: Sequence[dict[str, Any]] = tuple(make_batches())
        self.state = first_state()
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        """Trains on, and returns when all of it is computed."""
        for turn in range(steps):
            self.state, loss = self._step(self.state, self._batches[turn % BATCHES])
            if turn % 10 == 9:
                self.losses.append(float(loss))
        self.losses.append(float(loss))
