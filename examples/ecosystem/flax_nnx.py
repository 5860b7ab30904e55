"""flax nnx: modules that change, with batch norm and dropout, on handwritten digits.

As nnx's own functional interface has it: a module is split into what it is and what it holds. What
it holds goes to the server and comes back; there the module is put together and may be changed.
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


model = Classifier((64, 32), nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
GRAPH, START = nnx.split((model, optimizer))


def loss_of(model: Classifier, images: Any, labels: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
    return jnp.mean(losses)


@persistent_call(donate_argnums=0)
def step(state: Any, images: Any, labels: Any) -> Any:
    model, optimizer = nnx.merge(GRAPH, state)
    model.train()
    loss, slopes = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, slopes)
    return nnx.state((model, optimizer)), loss


@persistent_call
def share_of_hits(state: Any, images: Any, labels: Any) -> Any:
    model, _ = nnx.merge(GRAPH, state)
    model.eval()
    return jnp.mean(model(images).argmax(axis=1) == labels)


def train() -> dict[str, Any]:
    images, labels, *unseen = split()
    state = START
    losses = []
    for batch in batches(images, labels, STEPS):
        state, loss = step(state, *batch)
        losses.append(float(loss))
    nnx.update((model, optimizer), state)  # into the objects of this process
    return {
        "losses": np.array(losses),
        "hits": share_of_hits(nnx.state((model, optimizer)), *unseen),
        "params": nnx.to_pure_dict(nnx.state(model, nnx.Param)),
    }


if __name__ == "__main__":
    RESULTS = train()
    print(f"loss {RESULTS['losses'][0]:.3f} to {RESULTS['losses'][-1]:.3f}")
    print(f"{float(RESULTS['hits']):.1%} of unseen digits recognised")
