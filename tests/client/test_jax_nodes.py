from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest

from jaxd.jax_nodes import is_registered, structure, unflatten
from jaxd_protocol.errors import ResultError


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, child: Any, aux: Any) -> None:
        if aux == "bad":
            raise ValueError("no such aux")
        self.child = child
        self.aux = aux

    def tree_flatten(self) -> Any:
        return (self.child,), self.aux

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        (child,) = children
        return cls(child, aux)


class Stranger:
    pass


def test_a_node_is_made_as_jax_makes_it() -> None:
    """Of anything as children, containers and None included."""
    for child in (1, None, [2, {"a": 3}]):
        made = unflatten(Node, "aux", [child])
        assert type(made) is Node
        assert (made.child, made.aux) == (child, "aux")


def test_which_classes_are_registered() -> None:
    """Others cannot be made."""
    assert is_registered(Node)
    assert not is_registered(Stranger)


@pytest.mark.parametrize(
    ("cls", "aux", "count"), [(Node, "bad", 1), (Node, 1, 2), (Stranger, 1, 0)]
)
def test_what_the_class_does_not_take(cls: Any, aux: Any, count: int) -> None:
    """Is an error with what to do."""
    with pytest.raises(ResultError, match="Return dicts"):
        unflatten(cls, aux, [0] * count)


def test_structures() -> None:
    """A tree that has none is refused."""
    assert structure({"a": [0, None]}) == jax.tree.structure({"a": [0, None]})
    with pytest.raises(ResultError):
        structure({"a": 1, 2: 3})


def test_mappings_are_made_of_keys_and_values() -> None:
    """Which need not be plain, and a defaultdict has what makes more."""
    key = frozenset({1})
    assert unflatten(dict, (key,), [2.0]) == {key: 2.0}
    assert type(unflatten(OrderedDict, (key,), [2.0])) is OrderedDict
    made = unflatten(defaultdict, (list, (key,)), [2.0])
    assert (made[key], made["new"]) == (2.0, [])
    with pytest.raises(ResultError, match="cannot be made here"):
        unflatten(dict, (key,), [])


def test_without_jax_only_mappings_are_registered() -> None:
    """And jax is not imported to look."""
    program = (
        "import sys; from jaxd.jax_nodes import is_registered, structure\n"
        "from jaxd_protocol.errors import ResultError\n"
        "assert not is_registered(set)\n"
        "assert is_registered(dict)\n"
        "try: structure([0])\n"
        "except ResultError: assert 'jax' not in sys.modules\n"
        "else: raise SystemExit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("aux", "children"), [((1,), []), ((1,), [1, 2]), ((), [1]), ("x", [1])])
def test_a_dataclass_with_other_fields_is_an_error(aux: Any, children: list[Any]) -> None:
    """Not the end of the process: jaxlib looks for the children that it expects."""

    @jax.tree_util.register_dataclass
    @dataclass
    class Layer:
        w: Any
        name: Any = field(metadata={"static": True})

    assert unflatten(Layer, (1,), [2]) == Layer(2, 1)
    with pytest.raises(ResultError, match="1 children and 1 static fields"):
        unflatten(Layer, aux, children)
