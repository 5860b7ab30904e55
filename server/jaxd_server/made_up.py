"""Made-up data for a call of which only the shapes are known; the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from jaxd_server.jax_private import is_key_array, key_array, key_spec, weak_array

__all__ = ["made_up"]

_LARGEST: Final = 7
"""Small numbers are more likely than large ones to be good indexes and counts."""


def made_up(leaves: Sequence[Any], seed: int) -> list[Any]:
    """Arrays and numbers of the same kinds as `leaves`, none of which shares their memory.

    Floating-point numbers are normally distributed; integers are small and not negative.

    Args:
        leaves: what a program takes: numpy and jax arrays, PRNG keys, Python's numbers.
        seed: the same data come from the same seed.
    """
    random = np.random.default_rng(seed)
    return [_like(leaf, random) for leaf in leaves]


def _like(leaf: Any, random: np.random.Generator) -> Any:
    if is_key_array(leaf):
        spec = key_spec(leaf.aval)
        assert spec is not None
        return key_array(spec.impl, random.integers(0, 1 << 32, spec.shape, np.uint32))
    if isinstance(leaf, jax.Array):
        numbers = _numbers(leaf.shape, np.dtype(leaf.dtype), random)
        return weak_array(numbers) if leaf.aval.weak_type else _strong(numbers)
    if isinstance(leaf, np.ndarray | np.generic):
        return _numbers(leaf.shape, leaf.dtype, random)
    return type(leaf)(_numbers((), np.dtype(type(leaf)), random).item())


def _strong(numbers: Any) -> jax.Array:
    with jax.enable_x64(True):  # whatever the dtype is, it stays
        strong: jax.Array = jax.device_put(numbers)
    return strong


def _numbers(shape: tuple[int, ...], dtype: Any, random: np.random.Generator) -> Any:
    if jnp.issubdtype(dtype, jnp.bool_):
        return random.integers(0, 2, shape, np.uint8).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        largest = min(_LARGEST, int(jnp.iinfo(dtype).max))  # type: ignore[no-untyped-call]
        return random.integers(0, largest + 1, shape, np.uint8).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = random.standard_normal((*shape, 2))  # real and imaginary parts, side by side
        return numbers.view(np.complex128)[..., 0].astype(dtype)
    width = np.float64 if dtype.itemsize > 4 else np.float32  # no more memory than need be
    return np.asarray(random.standard_normal(shape, width)).astype(dtype, copy=False)
