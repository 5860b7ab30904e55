"""Arrays as this process has them."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.arrays_here import Kind, PRNGKeys, array_here, kind_here
from jaxd.lazy import LazyArray
from jaxd_protocol.trees import Leaf

VECTOR: Any = np.arange(3, dtype=np.float32)
LEAF = Leaf("A", "float32", (3,))
KEYS = Leaf("K", "uint32", (2,), impl="threefry2x32")


@pytest.mark.parametrize(
    ("kind", "cls"), [("jax", jax.Array), ("numpy", np.ndarray), ("lazy", LazyArray)]
)
def test_an_array_is_of_the_kind_that_is_wanted(kind: Kind, cls: type) -> None:
    """With the same numbers in it."""
    found = array_here(LEAF, memoryview(VECTOR.tobytes()), kind)
    assert isinstance(found, cls)
    np.testing.assert_array_equal(np.asarray(found), VECTOR)


@pytest.mark.parametrize(("kind", "data"), [("numpy", np.ndarray), ("lazy", LazyArray)])
def test_keys_are_opaque_without_jax(kind: Kind, data: type) -> None:
    """And jax's own where it is."""
    numbers = memoryview(np.array([1, 2], np.uint32).tobytes())
    found = array_here(KEYS, numbers, kind)
    assert isinstance(found, PRNGKeys)
    assert isinstance(found.data, data)
    assert found.impl == "threefry2x32"
    keys = array_here(KEYS, numbers, "jax")
    assert jax.random.key_data(keys).tolist() == [1, 2]


def test_an_array_can_be_written_to_where_its_bytes_can() -> None:
    """It is a view of them."""
    data = bytearray(VECTOR.tobytes())
    array_here(LEAF, memoryview(data), "numpy")[0] = 7
    assert np.frombuffer(data, np.float32)[0] == 7
    assert not array_here(LEAF, memoryview(data).toreadonly(), "numpy").flags.writeable


def test_the_heaviest_library_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are imported."""
    assert kind_here() == "jax"
    monkeypatch.delitem(sys.modules, "jax")
    assert kind_here() == "numpy"
    monkeypatch.delitem(sys.modules, "numpy")
    assert kind_here() == "lazy"
