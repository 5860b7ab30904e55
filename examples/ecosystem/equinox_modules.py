"""equinox: modules of one's own that are trees, with fields that are static, on digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, split

from jaxd import persistent_call

STEPS = 60


class Block(eqx.Module):
    """A layer around which its input is led."""

    inner: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    activation: Callable[[Any], Any] = eqx.field(static=True)

    def __init__(self, width: int, activation: Callable[[Any], Any], key: Any) -> None:
        self.inner = eqx.nn.Linear(width, width, key=key)
        self.norm = eqx.nn.LayerNorm(width)
        self.activation = activation

    def __call__(self, x: Any) -> Any:
        return x + self.activation(self.inner(self.norm(x)))


class Classifier(eqx.Module):
    first: eqx.nn.Linear
    blocks: list[Block]
    last: eqx.nn.Linear

    def __init__(self, width: int, key: Any) -> None:
        first, *between, last = jax.random.split(key, 4)
        self.first = eqx.nn.Linear(64, width, key=first)
        self.blocks = [Block(width, jax.nn.gelu, each) for each in between]
        self.last = eqx.nn.Linear(width, 10, key=last)

    def __call__(self, image: Any) -> Any:
        x = self.first(image)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


optimizer = optax.adam(0.003)


@persistent_call
def start(seed: Any) -> Any:
    model = Classifier(32, jax.random.key(seed))
    return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))


def loss_of(model: Classifier, images: Any, labels: Any) -> Any:
    scores = jax.vmap(model)(images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


@persistent_call(donate_argnums=(0, 1))
def step(model: Classifier, state: Any, images: Any, labels: Any) -> Any:
    loss, slopes = eqx.filter_value_and_grad(loss_of)(model, images, labels)
    updates, state = optimizer.update(slopes, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, loss


@persistent_call
def share_of_hits(model: Classifier, images: Any, labels: Any) -> Any:
    return jnp.mean(jax.vmap(model)(images).argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    model, state = start(0)  # an instance of this file's own class
    assert isinstance(model, Classifier)
    losses = []
    for batch in batches(images, labels, STEPS):
        model, state, loss = step(model, state, *batch)
        losses.append(float(loss))
    return {"losses": np.array(losses), "hits": share_of_hits(model, *unseen), "model": model}


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
