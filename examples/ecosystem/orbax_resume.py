"""orbax: training is interrupted, saved, restored and goes on as if nothing had been."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from digits import batches, split

from jaxd import get, persistent_call

STEPS = 40

optimizer = optax.sgd(0.3, momentum=0.9)


class Training:
    """What has to be saved; a node of jax's trees, by its registration."""

    def __init__(self, weights: Any, momentum: Any, done: Any) -> None:
        self.weights, self.momentum, self.done = weights, momentum, done


jax.tree_util.register_pytree_node(
    Training,
    lambda training: ((training.weights, training.momentum, training.done), None),
    lambda _, children: Training(*children),
)


def loss_of(weights: Any, images: Any, labels: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(images @ weights, labels)
    return jnp.mean(losses)


@persistent_call(donate_argnums=0)
def step(training: Training, images: Any, labels: Any) -> Any:
    loss, slopes = jax.value_and_grad(loss_of)(training.weights, images, labels)
    updates, momentum = optimizer.update(slopes, training.momentum)
    weights = optax.apply_updates(training.weights, updates)
    return Training(weights, momentum, training.done + 1), loss


def start() -> Training:
    weights = np.zeros((64, 10), np.float32)
    return Training(weights, optimizer.init(jnp.asarray(weights)), np.int32(0))


def train(training: Training, data: list[Any]) -> tuple[Training, list[float]]:
    losses = []
    for batch in data:
        training, loss = step(training, *batch)
        losses.append(float(loss))
    return training, losses


def save(training: Training, folder: Path) -> None:
    """The arrays come home first; orbax writes what is in this process."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, jax.tree.leaves(get(training)))


def restore(folder: Path) -> Training:
    leaves, structure = jax.tree.flatten(start())
    with ocp.StandardCheckpointer() as checkpointer:
        like = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]
        return structure.unflatten(checkpointer.restore(folder, like))


def run() -> dict[str, Any]:
    images, labels, *_ = split()
    data = list(batches(images, labels, STEPS))
    whole, losses = train(start(), data)
    half, first = train(start(), data[: STEPS // 2])
    with tempfile.TemporaryDirectory() as folder:
        save(half, Path(folder) / "half")
        end, second = train(restore(Path(folder) / "half"), data[STEPS // 2 :])
    return {"losses": np.array([losses, first + second]), "ends": [get(whole), get(end)]}


if __name__ == "__main__":
    RESULTS = run()
    without, with_a_break = RESULTS["losses"]
    print(f"loss {without[0]:.3f} to {without[-1]:.3f}, with a break {with_a_break[-1]:.3f}")
