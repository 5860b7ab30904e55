"""Arrays as this process has them."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxd.interop.jax_runtime import (
    ArrayLibrary,
    PRNGKeys,
    array_library,
    leaves_of,
    map_leaves,
    native_array,
)
from jaxd.interop.lazy_array import LazyArray
from jaxd_protocol.pytree import Leaf

VECTOR: Any = np.arange(3, dtype=np.float32)
LEAF = Leaf("A", "float32", (3,))
KEYS = Leaf("K", "uint32", (2,), impl="threefry2x32")


@pytest.mark.parametrize(
    ("kind", "cls"), [("jax", jax.Array), ("numpy", np.ndarray), ("lazy", LazyArray)]
)
def test_an_array_is_of_the_kind_that_is_wanted(kind: ArrayLibrary, cls: type) -> None:
    """With the same numbers in it."""
    found = native_array(LEAF, memoryview(VECTOR.tobytes()), kind)
    assert isinstance(found, cls)
    np.testing.assert_array_equal(np.asarray(found), VECTOR)


@pytest.mark.parametrize(("kind", "data"), [("numpy", np.ndarray), ("lazy", LazyArray)])
def test_keys_are_opaque_without_jax(kind: ArrayLibrary, data: type) -> None:
    """And jax's own where it is."""
    numbers = memoryview(np.array([1, 2], np.uint32).tobytes())
    found = native_array(KEYS, numbers, kind)
    assert isinstance(found, PRNGKeys)
    assert isinstance(found.data, data)
    assert found.impl == "threefry2x32"
    keys = native_array(KEYS, numbers, "jax")
    assert jax.random.key_data(keys).tolist() == [1, 2]


def test_an_array_can_be_written_to_where_its_bytes_can() -> None:
    """It is a view of them."""
    data = bytearray(VECTOR.tobytes())
    native_array(LEAF, memoryview(data), "numpy")[0] = 7
    assert np.frombuffer(data, np.float32)[0] == 7
    assert not native_array(LEAF, memoryview(data).toreadonly(), "numpy").flags.writeable


def test_the_heaviest_library_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are imported."""
    assert array_library() == "jax"
    monkeypatch.delitem(sys.modules, "jax")
    assert array_library() == "numpy"
    monkeypatch.delitem(sys.modules, "numpy")
    assert array_library() == "lazy"


class Pair(NamedTuple):
    a: Any
    b: Any


TREES: list[tuple[Any, Any]] = [
    (1, 2),
    (None, None),
    ([1, (2, None)], [2, (3, None)]),
    ({"b": 1, "a": [2]}, {"b": 2, "a": [3]}),
    (OrderedDict(b=1, a=2), OrderedDict(b=2, a=3)),
    (Pair(1, {"x": 2}), Pair(2, {"x": 3})),
]


@pytest.mark.parametrize(("tree", "expected"), TREES)
def test_each_leaf_is_replaced(tree: Any, expected: Any) -> None:
    """And nothing else: containers keep their types."""
    mapped = map_leaves(lambda leaf: leaf + 1, tree)
    assert (mapped, type(mapped)) == (expected, type(expected))


def test_it_is_the_same_without_jax() -> None:
    """In a process that has not imported it, and does not."""
    code = (
        "import sys; from collections import OrderedDict; from typing import NamedTuple\n"
        "from jaxd.interop.jax_runtime import leaves_of, map_leaves\n"
        "Pair = NamedTuple('Pair', [('a', object), ('b', object)])\n"
        f"for tree, expected in {TREES!r}:\n"
        "    mapped = map_leaves(lambda leaf: leaf + 1, tree)\n"
        "    assert (mapped, type(mapped)) == (expected, type(expected)), tree\n"
        "assert leaves_of({'b': 1, 'a': (2, None, [3])}) == [1, 2, 3]\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_leaves_come_in_the_order_of_the_tree() -> None:
    """With jax, which sorts the keys of a dict."""
    tree = {"b": 1, "a": (2, None, [3])}
    assert leaves_of(tree) == jax.tree.leaves(tree)
