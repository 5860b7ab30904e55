"""One train step of sixteen attention blocks, in a process of its own, in one of several ways.

Run as `python train.py MODE [BLOCKS]`. Every mode makes the same parameters with numpy; they
differ in who runs the step. The modules that a mode needs are imported by that mode alone, because
the time of the whole process is what is measured.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

BLOCKS = int(sys.argv[2]) if len(sys.argv) > 2 else 16
WIDTH, HEADS, TOKENS, BATCH = 64, 8, 32, 1

Block = dict[str, Any]


def normalise(x: Any, scale: Any) -> Any:
    """RMS normalisation of the last axis."""
    import jax.numpy as jnp

    return x * scale / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotate(x: Any) -> Any:
    """Rotary positions for one head, float32[batch, tokens, width]."""
    import jax.numpy as jnp

    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 1e4 ** (jnp.arange(half) / half)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cosine - right * sine, left * sine + right * cosine], axis=-1)


def attend(query: Any, key: Any, value: Any, reach: int) -> Any:
    """Causal attention of one head that sees `reach` tokens back."""
    import jax
    import jax.numpy as jnp

    tokens, width = query.shape[1:]
    distance = jnp.arange(tokens)[:, None] - jnp.arange(tokens)
    scores = jnp.einsum("btd,bsd->bts", rotate(query), rotate(key)) / width**0.5
    scores = 30.0 * jnp.tanh(scores / 30.0)
    scores = jnp.where((distance >= 0) & (distance < reach), scores, -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), value)


def apply_block(block: Block, x: Any) -> Any:
    """One block: attention whose heads reach 4, 8, 12 … tokens back, then a gated MLP."""
    import jax
    import jax.numpy as jnp

    inner = normalise(x, block["scale_attention"])
    query, key, value = (jnp.split(inner @ block[n], HEADS, axis=-1) for n in ("q", "k", "v"))
    reaches = range(4, 4 * HEADS + 1, 4)
    heads = [attend(*head) for head in zip(query, key, value, reaches, strict=True)]
    x = x + jnp.concatenate(heads, axis=-1) @ block["out"]
    inner = normalise(x, block["scale_mlp"])
    return x + (jax.nn.gelu(inner @ block["gate"]) * (inner @ block["up"])) @ block["down"]


def train_step(params: list[Block], momentum: list[Block], x: Any, y: Any) -> Any:
    """The loss, and parameters and momenta after one step of SGD with momentum."""
    import jax
    import jax.numpy as jnp

    def loss_of(params: list[Block]) -> Any:
        hidden = x
        for block in params:  # unrolled on purpose: the compiler sees every block
            hidden = apply_block(block, hidden)
        return jnp.mean((hidden - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
    return loss, params, momentum


def make_block(random: np.random.Generator) -> Block:
    """One block's parameters, seven matrices and two vectors of float32."""
    shapes = dict.fromkeys(("q", "k", "v", "out"), (1, 1))
    shapes |= {"gate": (1, 3), "up": (1, 3), "down": (3, 1)}
    block: Block = {
        name: random.standard_normal((rows * WIDTH, columns * WIDTH), np.float32) / WIDTH**0.5
        for name, (rows, columns) in shapes.items()
    }
    ones = np.ones(WIDTH, np.float32)
    return {**block, "scale_attention": ones, "scale_mlp": ones.copy()}


def make_arguments() -> tuple[list[Block], list[Block], Any, Any]:
    """Parameters, zero momenta and one batch: 7 MB, the same in every process."""
    random = np.random.default_rng(0)
    params = [make_block(random) for _ in range(BLOCKS)]
    momentum = [{name: np.zeros_like(leaf) for name, leaf in block.items()} for block in params]
    x, y = random.standard_normal((2, BATCH, TOKENS, WIDTH), np.float32)
    return params, momentum, x, y


def only_imports() -> None:
    """What any client of the kind has to pay: its imports and its parameters."""
    import cloudpickle  # noqa: F401
    import rpyc  # noqa: F401

    make_arguments()


def only_jax_imports() -> None:
    """The same for a script that imports jax at its top."""
    import jax  # noqa: F401

    only_imports()


def with_jaxd() -> None:
    """The step on jaxd's server; this process never imports jax."""
    from jaxd import persistent_call

    report(persistent_call(train_step)(*make_arguments()))


def with_jaxd_and_jax() -> None:
    """The step on jaxd's server, from a script that imports jax at its top."""
    import jax  # noqa: F401

    with_jaxd()


def with_plain_jax() -> None:
    """The step in this process; the environment decides about jax's disk cache."""
    import jax

    report(jax.jit(train_step)(*make_arguments()))


def report(result: Any) -> None:
    """Prints the loss with every digit that single precision has."""
    print(f"loss {float(result[0]):.9g}")


MODES = {
    "imports": only_imports,
    "jax-imports": only_jax_imports,
    "jaxd": with_jaxd,
    "jaxd-and-jax": with_jaxd_and_jax,
    "jax": with_plain_jax,
}

if __name__ == "__main__":
    MODES[sys.argv[1]]()
