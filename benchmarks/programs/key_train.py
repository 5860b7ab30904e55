"""A train step with flax and optax, as their own tutorials write it."""

from __future__ import annotations

import importlib
from typing import Any

import jax

# By name: whoever has no flax checks the types of this file all the same.
nn: Any = importlib.import_module("flax.linen")
optax: Any = importlib.import_module("optax")

WIDTHS = (128, 64)
CLASSES = 10


class Network(nn.Module):  # type: ignore[misc]  # flax is Any here
    """Two hidden layers and dropout."""

    widths: tuple[int, ...]
    classes: int
    rate: float = 0.1

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: Any, train: bool) -> Any:
        """Logits, float32[batch, classes]."""
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
            x = nn.Dropout(self.rate, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


network = Network(WIDTHS, CLASSES)
optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.cosine_decay_schedule(1e-3, 1000), weight_decay=1e-4),
)


def loss_of(params: Any, batch: Any, key: Any) -> Any:
    """Mean cross entropy."""
    logits = network.apply(params, batch["x"], train=True, rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def train_step(params: Any, state: Any, batch: Any, key: Any) -> Any:
    """The loss, the next parameters and the next state of the optimizer."""
    loss, gradients = jax.value_and_grad(loss_of)(params, batch, key)
    updates, state = optimizer.update(gradients, state, params)
    return loss, optax.apply_updates(params, updates), state
