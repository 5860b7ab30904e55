"""The private names of jax that the server uses, all of them, so that a move is noticed here.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_arrays.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.random import prng


class KeySpec(NamedTuple):
    """What the numbers of a typed key array look like.

    Attributes:
        impl: the name of the PRNG implementation.
        dtype: name of the numbers' dtype.
        shape: of the numbers: the key array's own, then that of one key.
    """

    impl: str
    dtype: str
    shape: tuple[int, ...]


def is_key_array(value: Any) -> bool:
    """Whether a jax array holds typed PRNG keys."""
    return isinstance(value, prng.PRNGKeyArray)


def key_spec(aval: Any) -> KeySpec | None:
    """What is in an array of that abstract value, if that is typed keys."""
    if not jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return None
    impl = aval.dtype._impl
    return KeySpec(str(impl.name), "uint32", (*aval.shape, *impl.key_shape))


def key_data(value: Any) -> Any:
    """The numbers of a typed key array, without the small program that `key_data` compiles."""
    return np.asarray(value._base_array)


def key_array(impl: str, data: Any) -> Any:
    """A typed key array over `data`, without the small program that `wrap_key_data` compiles."""
    return prng.PRNGKeyArray(prng.prngs[impl], jax.device_put(data))


def exact_array(data: Any) -> Any:
    """An array on the device with exactly this dtype, whatever jax's settings are in this thread.

    What is jax's already stays as it is; numpy's memory may be shared with the array.
    """
    if isinstance(data, jax.Array):
        return data
    with jax.enable_x64(True):
        return jax.device_put(data)


def weak_array(data: Any) -> Any:
    """A weakly typed array of exactly this dtype, whatever jax's settings are in this thread."""
    with jax.enable_x64(True):
        strong = jax.device_put(data)
    return ArrayImpl(strong.aval.update(weak_type=True), strong.sharding, [strong], committed=False)
