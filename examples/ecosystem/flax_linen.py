"""flax linen: batch norm, dropout and a train state of one's own, on handwritten digits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, split
from flax import linen as nn
from flax.training import train_state

from jaxd import persistent_call

STEPS = 60


class Block(nn.Module):
    """A layer, normalised over the batch, some of it left out while it learns."""

    width: int
    drop: float = 0.1

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.Dense(self.width)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return nn.Dropout(self.drop, deterministic=not train)(x)


class Classifier(nn.Module):
    widths: tuple[int, ...] = (64, 32)

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        for width in self.widths:
            x = Block(width)(x, train)
        return nn.Dense(10)(x)


class TrainState(train_state.TrainState):
    """With what flax's own has no place for: running means, and a key for the dropout."""

    batch_stats: Any
    key: Any


model = Classifier()


@persistent_call
def start(seed: Any) -> Any:
    for_params, key = jax.random.split(jax.random.key(seed))
    variables = model.init(for_params, jnp.ones((1, 64)), train=False)
    return TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adam(0.01),
        batch_stats=variables["batch_stats"],
        key=key,
    )


@persistent_call(donate_argnums=0)
def step(state: Any, images: Any, labels: Any) -> Any:
    key, for_dropout = jax.random.split(state.key)

    def loss_of(params: Any) -> Any:
        scores, changes = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": for_dropout},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return losses.mean(), changes["batch_stats"]

    (loss, stats), slopes = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=slopes, batch_stats=stats, key=key), loss


@persistent_call
def share_of_hits(state: Any, images: Any, labels: Any) -> Any:
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    scores = state.apply_fn(variables, images, train=False)
    return jnp.mean(scores.argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    state = start(0)
    losses = []
    for batch in batches(images, labels, STEPS):
        state, loss = step(state, *batch)
        losses.append(float(loss))
    return {
        "losses": np.array(losses),
        "hits": share_of_hits(state, *unseen),
        "variables": [state.params, state.batch_stats],
    }


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
