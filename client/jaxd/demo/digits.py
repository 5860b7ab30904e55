"""Trains a small network on the 1,797 handwritten digits that ship inside scikit-learn.

    python -m jaxd.demo.digits --mode persistent      calls go to a jaxd server
    python -m jaxd.demo.digits --mode jit             the same script on jax in this process

The two modes differ in one line, the one that chooses the decorator. The last line on standard
output is a JSON report of how long things took.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]
Params: TypeAlias = dict[str, Floats]

BATCH = 32
LAYERS = (64, 128, 64, 10)
TEST_IMAGES = 360


def logits(params: Params, images: Floats) -> Any:
    """The network: two hidden layers; shape (n, 64) to (n, 10)."""
    import jax.numpy as jnp

    hidden: Any = images
    for layer in range(len(params) // 2):
        if layer:
            hidden = jnp.maximum(hidden, 0)
        hidden = hidden @ params[f"w{layer}"] + params[f"b{layer}"]
    return hidden


def train_epoch(
    params: Params, velocity: Params, images: Floats, labels: Ints
) -> tuple[Params, Params, Any]:
    """One pass over all minibatches: images (steps, batch, 64), labels (steps, batch)."""
    import jax
    import jax.numpy as jnp

    def loss(params: Any, x: Any, y: Any) -> Any:
        log_probability = jax.nn.log_softmax(logits(params, x))
        return -jnp.mean(jnp.take_along_axis(log_probability, y[:, None], axis=1))

    def step(state: Any, batch: Any) -> Any:
        params, velocity = state
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.02 * g, velocity, gradient)
        return (jax.tree.map(jnp.add, params, velocity), velocity), value

    (params, velocity), losses = jax.lax.scan(step, (params, velocity), (images, labels))
    return params, velocity, losses.mean()


def predict(params: Params, images: Floats) -> Any:
    """The most likely digit of each image: shape (n,)."""
    return logits(params, images).argmax(axis=-1)


def initial_params(rng: np.random.Generator) -> Params:
    """Random weights and zero biases for `LAYERS`."""
    params: Params = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(LAYERS)):
        weights = rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out))
        params[f"w{layer}"] = weights.astype(np.float32)
        params[f"b{layer}"] = np.zeros(fan_out, np.float32)
    return params


def load_images(rng: np.random.Generator) -> tuple[Floats, Ints, Floats, Ints]:
    """Training images and labels, then test images and labels, in a fixed random split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def decorator(mode: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`jaxd.persistent_call` or `jax.jit`: all that the two modes differ in."""
    if mode == "jit":
        import jax

        return jax.jit
    from jaxd import persistent_call

    return persistent_call


def train(mode: str, epochs: int, started_at: float) -> dict[str, Any]:
    """Trains, and reports how long each part took in seconds since `started_at` (epoch time)."""
    rng = np.random.default_rng(0)
    images, labels, test_images, test_labels = load_images(rng)
    params = initial_params(rng)
    velocity = {name: np.zeros_like(value) for name, value in params.items()}
    compiled = decorator(mode)
    run_epoch, classify = compiled(train_epoch), compiled(predict)
    steps = len(labels) // BATCH
    history: list[dict[str, float]] = []
    first_result_s = 0.0
    ready_s = time.time() - started_at
    for _ in range(epochs):
        batches = rng.permutation(len(labels))[: steps * BATCH].reshape(steps, BATCH)
        params, velocity, loss = run_epoch(params, velocity, images[batches], labels[batches])
        loss = float(loss)
        first_result_s = first_result_s or time.time() - started_at
        accuracy = float(np.mean(np.asarray(classify(params, test_images)) == test_labels))
        history.append({"loss": loss, "accuracy": accuracy})
    return {
        "mode": mode,
        "ready_s": ready_s,
        "first_call_s": first_result_s - ready_s,
        "first_result_s": first_result_s,
        "total_s": time.time() - started_at,
        "accuracy": history[-1]["accuracy"],
        "history": history,
        "jax_imported": "jax" in sys.modules,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line, trains, and prints the report."""
    parser = argparse.ArgumentParser(prog="python -m jaxd.demo.digits", description=__doc__)
    parser.add_argument("--mode", choices=("persistent", "jit"), default="persistent")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--started-at",
        type=float,
        default=time.time(),
        help="when this process was started, in seconds since 1970 (default: now)",
    )
    options = parser.parse_args(argv)
    print(json.dumps(train(options.mode, options.epochs, options.started_at)))


if __name__ == "__main__":
    main()
