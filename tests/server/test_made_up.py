"""Data that stand for a call's own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd_server.jax_private import weak_array
from jaxd_server.made_up import made_up

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "int4", "uint4"),
]


def dtype_of(name: str) -> Any:
    """The numpy dtype of that name."""
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_keep_shape_and_dtype(name: str) -> None:
    """And are not all the same number."""
    (made,) = made_up([np.zeros((8, 9), dtype_of(name))], 1)
    assert (made.shape, made.dtype) == ((8, 9), dtype_of(name))
    assert len(set(made.ravel().tolist())) > 1


@pytest.mark.parametrize("name", ["int8", "uint64", "int4"])
def test_integers_are_small_and_not_negative(name: str) -> None:
    """So that they will do as indexes and counts."""
    (made,) = made_up([np.zeros(100, dtype_of(name))], 1)
    numbers = made.astype(np.int64)
    assert (numbers.min(), numbers.max()) == (0, 7)


def test_a_single_number_of_numpy_is_an_array_without_dimensions() -> None:
    """Which is the same to a program."""
    (made,) = made_up([np.float32(3)], 1)
    assert (made.shape, made.dtype) == ((), np.dtype(np.float32))


@pytest.mark.parametrize("value", [True, 5, 1.5, 2j])
def test_numbers_keep_their_type(value: Any) -> None:
    """Python's own are weakly typed."""
    (made,) = made_up([value], 1)
    assert type(made) is type(value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_of_jax_keep_what_they_are(dtype: Any) -> None:
    """Weakly typed or not, and of 64 bits whatever jax's settings are."""
    with jax.enable_x64(True):
        leaves = [jnp.zeros(3, dtype), weak_array(np.zeros((), dtype))]
    made = made_up(leaves, 1)
    assert [(each.dtype, each.shape, each.aval.weak_type) for each in made] == [
        (np.dtype(dtype), (3,), False),
        (np.dtype(dtype), (), True),
    ]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_keep_their_implementation(impl: str) -> None:
    """And shape; they are other keys."""
    keys = jax.random.split(jax.random.key(0, impl=impl), 2)
    (made,) = made_up([keys], 1)
    assert (made.dtype, made.shape) == (keys.dtype, keys.shape)
    first, second = np.asarray(jax.random.key_data(made)).tolist()
    assert first != second


def test_the_same_seed_gives_the_same_data_in_memory_of_its_own() -> None:
    """One program may be allowed to overwrite what another is to get too."""
    leaves = [np.zeros(4, np.float32), jax.random.key(0), 1.0]
    first, again, other = made_up(leaves, 7), made_up(leaves, 7), made_up(leaves, 8)
    assert first[0].tolist() == again[0].tolist() != other[0].tolist()
    assert not np.shares_memory(first[0], again[0])
    assert first[2] == again[2] != other[2]
