"""haiku: a module of one's own with state and randomness, made a pure function, on digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, split

from jaxd import persistent_call

STEPS = 60


class Block(hk.Module):
    """A layer, normalised by running means, some of it left out while it learns."""

    def __init__(self, width: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.width = width

    def __call__(self, x: Any, is_training: bool) -> Any:
        norm = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)
        x = jax.nn.relu(norm(hk.Linear(self.width)(x), is_training))
        return hk.dropout(hk.next_rng_key(), 0.1, x) if is_training else x


@hk.transform_with_state
def network(images: Any, is_training: bool) -> Any:
    x = Block(64)(images, is_training)
    x = Block(32)(x, is_training)
    return hk.Linear(10)(x)


class Training(NamedTuple):
    params: Any
    state: Any
    moments: Any
    key: Any


optimizer = optax.adam(0.01)


@persistent_call
def start(seed: Any) -> Any:
    for_params, key = jax.random.split(jax.random.PRNGKey(seed))
    params, state = network.init(for_params, jnp.ones((1, 64)), True)
    return Training(params, state, optimizer.init(params), key)


@persistent_call(donate_argnums=0)
def step(training: Training, images: Any, labels: Any) -> Any:
    key, once = jax.random.split(training.key)

    def loss_of(params: Any) -> Any:
        scores, state = network.apply(params, training.state, once, images, True)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return losses.mean(), state

    (loss, state), slopes = jax.value_and_grad(loss_of, has_aux=True)(training.params)
    updates, moments = optimizer.update(slopes, training.moments)
    return Training(optax.apply_updates(training.params, updates), state, moments, key), loss


@persistent_call
def share_of_hits(training: Training, images: Any, labels: Any) -> Any:
    scores, _ = network.apply(training.params, training.state, None, images, False)
    return jnp.mean(scores.argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    training = start(0)
    losses = []
    for batch in batches(images, labels, STEPS):
        training, loss = step(training, *batch)
        losses.append(float(loss))
    return {
        "losses": np.array(losses),
        "hits": share_of_hits(training, *unseen),
        "variables": [training.params, training.state],
    }


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
