"""A GPT in flax, trained on made-up text, in a process of its own: `python gpt.py MODE SIZE`.

`124M` has the shape of the smallest GPT-2 (12 blocks, width 768, a vocabulary of 50,304), in
float32 with products in bfloat16, and 512 tokens, for a step of a few milliseconds; `tiny` only
shows that everything runs. The whole process up to the first loss is what is measured, so flax and
jax are imported by the functions that need them: where jaxd makes the step, this process imports
neither.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

import numpy as np


class Shape(NamedTuple):
    """How large the model and its batch are."""

    blocks: int
    width: int
    heads: int
    vocabulary: int
    tokens: int


SHAPES: Final = {
    "124M": Shape(blocks=12, width=768, heads=12, vocabulary=50_304, tokens=512),
    "tiny": Shape(blocks=1, width=32, heads=2, vocabulary=256, tokens=16),
}


def make_model(shape: tuple[int, ...]) -> Any:
    """The model; `shape` is the values of a `Shape`, which are static."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    blocks, width, heads, vocabulary, tokens = shape

    class Block(nn.Module):  # type: ignore[misc, unused-ignore]  # who has no flax checks types as well
        @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
        def __call__(self, x: Any) -> Any:
            inner = nn.LayerNorm(dtype=jnp.bfloat16)(x)
            inner = nn.Dense(3 * width, dtype=jnp.bfloat16)(inner)
            query, key, value = jnp.split(inner.reshape(x.shape[0], heads, -1), 3, axis=-1)
            out = jax.nn.dot_product_attention(query, key, value, is_causal=True)
            x = x + nn.Dense(width, dtype=jnp.bfloat16)(out.reshape(x.shape))
            inner = nn.Dense(4 * width, dtype=jnp.bfloat16)(nn.LayerNorm(dtype=jnp.bfloat16)(x))
            return x + nn.Dense(width, dtype=jnp.bfloat16)(nn.gelu(inner))

    class Gpt(nn.Module):  # type: ignore[misc, unused-ignore]
        @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
        def __call__(self, text: Any) -> Any:
            embed = nn.Embed(vocabulary, width, dtype=jnp.bfloat16)
            x = embed(text) + nn.Embed(tokens, width, dtype=jnp.bfloat16)(jnp.arange(tokens))
            for _ in range(blocks):  # unrolled, as models are written
                x = Block()(x)
            return embed.attend(nn.LayerNorm(dtype=jnp.bfloat16)(x)).astype(jnp.float32)

    return Gpt()


def first_state(text: Any, shape: tuple[int, ...]) -> Any:
    """Parameters and the moments of Adam, made where the function runs."""
    import jax
    import jax.numpy as jnp

    params = make_model(shape).init(jax.random.key(0), text[:-1])["params"]
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mean": zeros, "square": zeros, "step": jnp.float32(0)}


def train_step(state: Any, text: Any, repeats: Any, shape: tuple[int, ...]) -> Any:
    """The next state, and the loss.

    The gradients are summed over `repeats` passes, which is an argument of the program: one program
    has steps of any length.
    """
    import jax
    import jax.numpy as jnp

    model = make_model(shape)

    def loss_of(params: Any) -> Any:
        logits = jax.nn.log_softmax(model.apply({"params": params}, text[:-1]))
        return -jnp.take_along_axis(logits, text[1:, None], axis=-1).mean()

    def once_more(_: Any, sums: Any) -> Any:
        return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss_of)(state["params"]))

    nothing = (jnp.float32(0), jax.tree.map(jnp.zeros_like, state["params"]))
    loss, gradients = jax.lax.fori_loop(0, repeats, once_more, nothing)
    gradients = jax.tree.map(lambda g: g / repeats, gradients)
    step = state["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, state["square"], gradients)
    rate = 3e-4 * jnp.sqrt(1 - 0.95**step) / (1 - 0.9**step)
    params = jax.tree.map(
        lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), state["params"], mean, square
    )
    return {"params": params, "mean": mean, "square": square, "step": step}, loss / repeats


def make_text(shape: Shape, seed: int = 0) -> Any:
    """One line of made-up tokens, int32[tokens + 1], which are not all alike."""
    random = np.random.default_rng(seed)
    return (random.integers(0, 16, shape.tokens + 1) ** 2).astype(np.int32)


def first_loss(decorate: Any, shape: Shape) -> float:
    """Makes the state, trains one step, and has its loss here."""
    begin = decorate(first_state, static_argnames="shape")
    step = decorate(train_step, static_argnames="shape", donate_argnums=0)
    text = make_text(shape)
    _, loss = step(begin(text, shape=tuple(shape)), text, np.int32(1), shape=tuple(shape))
    return float(loss)


def main() -> None:
    """Prints the first loss, with which the others' must agree."""
    mode, size = sys.argv[1:]
    decorate: Any
    if mode == "jaxd":
        from jaxd import persistent_call as decorate
    else:
        from jax import jit as decorate
    print(f"loss-of-gpt {first_loss(decorate, SHAPES[size]):.9g}")


if __name__ == "__main__":
    main()
