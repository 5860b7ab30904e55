"""flax nnx: a model, an optimizer and metrics that a function changes, as under `nnx.jit`.

The objects are given to the call. What it changes in them (parameters, running means, moments,
counts of random numbers) is changed in this process's own objects when it returns.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, split
from flax import nnx

from jaxd import persistent_call

STEPS = 60


class Block(nnx.Module):
    """A layer, normalised over the batch, some of it left out while it learns."""

    def __init__(self, inputs: int, width: int, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(inputs, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(nnx.relu(self.norm(self.linear(x))))


class Classifier(nnx.Module):
    def __init__(self, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        pairs = pairwise((64, *widths))
        self.blocks = nnx.List([Block(one, other, rngs) for one, other in pairs])
        self.last = nnx.Linear(widths[-1], 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def loss_of(model: Classifier, images: Any, labels: Any) -> Any:
    scores = model(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(losses), scores


@persistent_call
def step(model: Classifier, optimizer: Any, metrics: Any, images: Any, labels: Any) -> Any:
    (loss, scores), slopes = nnx.value_and_grad(loss_of, has_aux=True)(model, images, labels)
    optimizer.update(model, slopes)
    metrics.update(loss=loss, logits=scores, labels=labels)
    return loss


@persistent_call
def share_of_hits(model: Classifier, images: Any, labels: Any) -> Any:
    return jnp.mean(model(images).argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    model = Classifier((64, 32), nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    metrics = nnx.MultiMetric(hits=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    model.train()
    data = batches(images, labels, STEPS)
    losses = [float(step(model, optimizer, metrics, *batch)) for batch in data]
    model.eval()
    return {
        "losses": np.array(losses),
        "hits": share_of_hits(model, *unseen),
        "metrics": metrics.compute(),
        "state": nnx.to_pure_dict(nnx.state((model, optimizer))),
    }


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
