"""Arrays travel as dtype, shape and bytes."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack, pack_out_of_band
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.ids import row


def test_a_numpy_array_arrives() -> None:
    """Dtype, shape, content, and whether it can be written to."""
    rows: list[Any] = [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::2],
        np.zeros((0, 3)),
        np.array(1.5),
        np.zeros(2, dtype=[("a", "<i4"), ("b", ">f8", (2,))]),
        np.arange(3, dtype=ml_dtypes.bfloat16),
        np.array(["a", "bcd"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.array([1, "a", None], dtype=object),
    ]
    for array in rows:
        with row(array):
            found = unpack(pack(array, "it"))
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert str(found.tolist()) == str(array.tolist())
            assert found.flags.writeable == array.flags.writeable


def test_nothing_of_numpys_inner_modules_is_named() -> None:
    """They have other names in numpy 1."""
    data = pack([np.arange(3.0), np.float32(2), np.array([None])], "it")
    names = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    assert not [name for name in names if "_core" in name or "core." in name]


def test_the_inner_names_of_either_numpy_are_found() -> None:
    """For what is pickled in numpy's own way, as masked arrays are."""
    array = np.ma.masked_array([1, 2], [True, False])
    data = pickle.dumps(array, 5).replace(b"numpy._core.", b"numpy.core.")
    framed = pickle.dumps(array, 0).replace(b"numpy._core.", b"numpy.core.")
    assert unpack(framed).tolist() == [None, 2]
    assert unpack(pickle.dumps(array, 5)).tolist() == [None, 2]
    assert data


def test_a_scalar_keeps_its_type() -> None:
    """It is not a number of Python's."""
    for scalar in (np.float32(1.5), np.int8(3), np.bool_(True), np.datetime64("2020-01-01")):
        found = unpack(pack(scalar, "it"))
        assert type(found) is type(scalar)
        assert found == scalar


def test_an_array_in_itself_arrives_in_itself() -> None:
    """An array of objects may hold anything."""
    array = np.empty(2, dtype=object)
    array[0] = [array]
    found = unpack(pack(array, "it"))
    assert found[0][0] is found


def test_arrays_beside_the_bytes_are_not_copied() -> None:
    """Neither when packed nor when unpacked."""
    array = np.arange(10_000.0)
    packed, buffers = pack_out_of_band({"a": array, "b": 1}, "it")
    assert len(packed) < 400
    assert [np.shares_memory(np.frombuffer(buffer), array) for buffer in buffers] == [True]
    found = unpack(packed, buffers)
    assert np.shares_memory(found["a"], array)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2],
        lambda a: a.T,
        lambda a: a[:, 1],
        lambda a: a[:0],
        lambda a: a.reshape(3, 2, 2).transpose(1, 0, 2),
        lambda a: a.reshape(3, 1, 4)[::-1, :, 1:].T,
        lambda a: np.broadcast_to(a[0], (2, 4)),
    ],
)
def test_an_array_arrives_whatever_its_layout(view: Callable[[Any], Any]) -> None:
    """Contiguous or not; code that asks finds its elements in the order of its memory."""
    array = view(np.arange(12.0).reshape(3, 4))
    packed, buffers = pack_out_of_band(array, "it")
    found = unpack(packed, [bytes(buffer) for buffer in buffers])
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(found.ravel("K"), array.ravel("K"))
    assert walk(found, "it").fingerprint.digest == walk(array, "it").fingerprint.digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_a_jax_array_arrives(dtype: str) -> None:
    """As one."""
    found = unpack(pack(jnp.arange(2).astype(dtype), "it"))
    assert isinstance(found, jax.Array)
    assert found.dtype == dtype
    assert found.tolist() == jnp.arange(2).astype(dtype).tolist()


def test_a_weak_type_stays_weak() -> None:
    """It decides about promotion."""
    weak, strong = jnp.asarray(2.0), jnp.float32(2.0)
    assert unpack(pack(weak, "it")).weak_type
    assert not unpack(pack(strong, "it")).weak_type
    assert (unpack(pack(weak, "it")) * jnp.ones(1, "bfloat16")).dtype == "bfloat16"


def test_64_bits_stay_64_bits() -> None:
    """Also where the server's jax is set to 32."""
    with jax.enable_x64(True):
        wide = jnp.asarray([1.0 + 1e-12])
    data = pack(wide, "it")
    found = unpack(data)
    assert found.dtype == "float64"
    assert np.asarray(found)[0] == 1.0 + 1e-12


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_keys_arrive(implementation: str) -> None:
    """With their generator, and draw the same numbers."""
    key = jax.random.key(3, impl=implementation)
    found = unpack(pack(key, "it"))
    assert found.dtype == key.dtype
    assert jax.random.key_data(found).tolist() == jax.random.key_data(key).tolist()
