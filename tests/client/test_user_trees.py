"""Trees with and without jax."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

from jaxd.user_trees import leaves_of, map_leaves


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
        "import sys; from tests.client.test_user_trees import TREES; "
        "from jaxd.user_trees import leaves_of, map_leaves\n"
        "for tree, expected in TREES:\n"
        "    mapped = map_leaves(lambda leaf: leaf + 1, tree)\n"
        "    assert (mapped, type(mapped)) == (expected, type(expected)), tree\n"
        "assert leaves_of({'b': 1, 'a': (2, None, [3])}) == [1, 2, 3]\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_leaves_come_in_the_order_of_the_tree() -> None:
    """With jax, which sorts the keys of a dict."""
    import jax

    tree = {"b": 1, "a": (2, None, [3])}
    assert leaves_of(tree) == jax.tree.leaves(tree)
