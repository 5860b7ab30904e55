"""Programs of all kinds that XLA makes for a GPU: tuned, of libraries, and written by hand.

Those come first that had not been seen when `make gpu` ran for the first time. A function imports
jax itself, so that its client needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

Arrays = tuple[Any, ...]


class Program(NamedTuple):
    """One of them.

    Attributes:
        call: the function.
        arguments: makes its arguments, always the same.
        needs_gpu: whether no CPU compiles it.
        tolerance: by which plain jax may differ: it tunes for itself.
    """

    call: Callable[..., Any]
    arguments: Callable[[], Arrays]
    needs_gpu: bool = False
    tolerance: float = 1e-3


def _normal(*shapes: tuple[int, ...]) -> Callable[[], Arrays]:
    def make() -> Arrays:
        random = np.random.default_rng(0)
        return tuple(random.standard_normal(shape, np.float32) for shape in shapes)

    return make


def cudnn_attention(query: Any, key: Any, value: Any) -> Any:
    """By cuDNN's own kernel."""
    import jax
    import jax.numpy as jnp

    query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
    out = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    return out.astype(jnp.float32)


def cudnn_attention_backwards(query: Any, key: Any, value: Any) -> Any:
    """Its derivative, which is another kernel."""
    import jax

    def total(query: Any) -> Any:
        return (cudnn_attention(query, key, value) ** 2).sum()

    return jax.grad(total)(query)


def triton_kernel(x: Any, y: Any) -> Any:
    """Written by hand for Triton."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jax.numpy.tanh(x_ref[...]) * 2.0 + y_ref[...]

    block = pl.BlockSpec((64, 64), lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 64, x.shape[1] // 64),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=triton.CompilerParams(num_warps=4),
    )(x, y)


def pallas_kernel(x: Any, y: Any) -> Any:
    """The same kind, for whatever Pallas takes by itself."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 3.0 + y_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def tuned_product(x: Any, y: Any) -> Any:
    """XLA tries several kernels and keeps the fastest, Triton's and cuBLAS's among them."""
    import jax
    import jax.numpy as jnp

    half = jnp.dot(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
    return jax.nn.gelu(half.astype(jnp.float32)) + jax.nn.softmax(x @ y)


def tuned_convolution(image: Any, kernel: Any) -> Any:
    """XLA tries those of cuDNN."""
    import jax

    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def xla_attention(query: Any, key: Any, value: Any) -> Any:
    """Of products and a softmax that XLA fuses."""
    import jax

    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="xla")


def cholesky(x: Any) -> Any:
    """By cuSOLVER, or LAPACK."""
    import jax.numpy as jnp

    return jnp.linalg.cholesky(x @ x.T + 100.0 * jnp.eye(x.shape[0]))


def eigenvalues(x: Any) -> Any:
    """By another function of these."""
    import jax.numpy as jnp

    return jnp.linalg.eigvalsh(x + x.T)


def fourier(x: Any) -> Any:
    """By cuFFT."""
    import jax.numpy as jnp

    return jnp.abs(jnp.fft.rfft(x))


def sorted_rows(x: Any) -> Any:
    """By CUB, where rows are long."""
    import jax.numpy as jnp

    return jnp.sort(x, axis=-1)


def scanned(x: Any) -> Any:
    """A loop on the device."""
    import jax

    def step(carry: Any, row: Any) -> Any:
        carry = 0.9 * carry + row
        return carry, carry.sum()

    return jax.lax.scan(step, x[0], x)[1]


def float8_product(x: Any, y: Any) -> Any:
    """Of numbers of eight bits."""
    import jax.numpy as jnp

    x, y = x.astype(jnp.float8_e4m3fn), y.astype(jnp.float8_e4m3fn)
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def drawn(x: Any) -> Any:
    """Of random bits, whose algorithm depends on the device."""
    import jax

    return x + jax.random.normal(jax.random.key(7), x.shape)


_SQUARE: Final = _normal((256, 256))
_TWO: Final = _normal((256, 256), (256, 256))
_HEADS: Final = _normal(*[(2, 128, 4, 64)] * 3)

PROGRAMS: Final = {
    "cudnn_attention": Program(cudnn_attention, _HEADS, needs_gpu=True, tolerance=3e-2),
    "cudnn_attention_backwards": Program(
        cudnn_attention_backwards, _HEADS, needs_gpu=True, tolerance=1e-1
    ),
    "triton_kernel": Program(triton_kernel, _TWO, needs_gpu=True),
    "pallas_kernel": Program(pallas_kernel, _TWO, needs_gpu=True),
    "tuned_product": Program(tuned_product, _TWO, tolerance=5e-1),
    "tuned_convolution": Program(
        tuned_convolution, _normal((4, 32, 32, 16), (3, 3, 16, 32)), tolerance=1e-1
    ),
    "xla_attention": Program(xla_attention, _HEADS, tolerance=1e-2),
    "cholesky": Program(cholesky, _SQUARE, tolerance=1e-1),
    "eigenvalues": Program(eigenvalues, _SQUARE, tolerance=1e-1),
    "fourier": Program(fourier, _SQUARE),
    "sorted_rows": Program(sorted_rows, _normal((4, 8192))),
    "scanned": Program(scanned, _SQUARE, tolerance=1e-2),
    "float8_product": Program(float8_product, _TWO, tolerance=1e-1),
    "drawn": Program(drawn, _SQUARE),
}
