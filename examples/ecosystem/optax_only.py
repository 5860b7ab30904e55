"""optax without a library of layers: AdamW with a schedule, on handwritten digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, split

from jaxd import persistent_call

STEPS = 60


class Layer(NamedTuple):
    weights: Any
    bias: Any


schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 10, STEPS)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-3))


def scores(layers: list[Layer], images: Any) -> Any:
    *hidden, last = layers
    for layer in hidden:
        images = jax.nn.relu(images @ layer.weights + layer.bias)
    return images @ last.weights + last.bias


def loss_of(layers: list[Layer], images: Any, labels: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(scores(layers, images), labels)
    return jnp.mean(losses)


@persistent_call
def start(seed: Any) -> Any:
    """Layers, and the optimizer's state beside them: made on the server, where they stay."""
    keys = jax.random.split(jax.random.key(seed), 2)
    layers = [
        Layer(jax.random.normal(key, shape) * jnp.sqrt(2 / shape[0]), jnp.zeros(shape[1]))
        for key, shape in zip(keys, [(64, 32), (32, 10)], strict=True)
    ]
    return layers, optimizer.init(layers)


@persistent_call(donate_argnums=(0, 1))
def step(layers: list[Layer], state: Any, images: Any, labels: Any) -> Any:
    loss, slopes = jax.value_and_grad(loss_of)(layers, images, labels)
    updates, state = optimizer.update(slopes, state, layers)
    return optax.apply_updates(layers, updates), state, loss


@persistent_call
def share_of_hits(layers: list[Layer], images: Any, labels: Any) -> Any:
    return jnp.mean(scores(layers, images).argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    layers, state = start(0)
    losses = []
    for batch in batches(images, labels, STEPS):
        layers, state, loss = step(layers, state, *batch)
        losses.append(float(loss))
    return {"losses": np.array(losses), "hits": share_of_hits(layers, *unseen), "layers": layers}


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
