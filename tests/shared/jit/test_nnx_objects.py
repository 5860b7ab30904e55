"""flax nnx objects as trees: what of flax is private, and what is static in them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.nnx_objects import (
    ObjectParts,
    PutTogether,
    TakenApart,
    contains_objects,
    received_parts,
)
from jaxd_protocol.pytree.decoder import NNX_PARTS

nnx: Any = pytest.importorskip("flax.nnx")


class Tree(nnx.Module):  # type: ignore[misc]
    """Data of every kind."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(2))
        self.mixed = nnx.data({"a": jnp.ones(1), "b": (3, None)})
        self.number = nnx.data(4)
        self.mode = "train"


class Graph(nnx.Module, pytree=False):  # type: ignore[misc,call-arg]
    """In a circle with itself."""

    def __init__(self) -> None:
        self.parts = [Tree(), 5]
        self.sizes = (1, 2)
        self.me = self


def copied(value: Any) -> Any:
    """Through jax's trees, as a call does it."""
    return PutTogether().tree(jax.tree.map(lambda leaf: leaf, TakenApart().tree(value)))


def test_flax_keeps_what_it_kept_of_an_object() -> None:
    """The private names that are used; where one has moved, this says so."""
    from flax.nnx.pytreelib import PytreeState

    model = Tree()
    assert set(vars(model)) >= {"_pytree__nodes", "_pytree__state"}
    assert model._pytree__nodes.update({"x": True})["x"] is True
    assert dict(Tree._pytree__nodes)["_pytree__state"] is True
    assert (Tree._pytree__is_pytree, Graph._pytree__is_pytree) == (True, False)
    state = model._pytree__state
    assert (state.initializing, state.is_setup) == (False, False)
    assert PytreeState(True, False).initializing


def test_an_object_is_made_again() -> None:
    """With all of its attributes, and nnx can go on with it."""
    model = copied(Tree())
    assert type(model) is Tree
    assert model.mixed["b"] == (3, None)
    assert model.mode == "train"
    model.more = nnx.Param(jnp.zeros(1))
    assert [name for name, _ in sorted(nnx.state(model).items())] == [
        *("mixed", "more", "number", "weight")
    ]


def test_a_circle_is_made_again() -> None:
    """Also of a class that is no tree of jax."""
    graph = copied([Graph()])[0]
    assert graph.me is graph
    assert graph.parts[1] == 5
    assert graph.sizes == (1, 2)


def test_what_is_no_array_in_a_container_is_static() -> None:
    """A number that is an attribute by itself is data."""
    assert len(jax.tree.leaves(TakenApart().tree(Tree()))) == 3
    assert len(jax.tree.leaves(TakenApart().tree(Graph()))) == 3


def test_objects_are_found_in_containers_and_not_in_states() -> None:
    """A `State` is passed as values."""
    assert contains_objects({"x": [Tree()]})
    assert contains_objects((nnx.Param(1),))
    assert not contains_objects([nnx.state(Tree()), jnp.ones(1), "text", None])


@pytest.mark.parametrize(
    "state",
    [
        {NNX_PARTS: 3},
        {NNX_PARTS: ((), (), (), ()), "more": 1},
        {NNX_PARTS: ((), ("_pytree__nodes",), (), ()), "_pytree__nodes": {}},
        {NNX_PARTS: ((), (), ((1, 2),), ())},
    ],
)
def test_parts_that_do_not_fit_are_refused(state: dict[Any, Any]) -> None:
    """A server may have written them."""
    with pytest.raises(ProtocolError, match="whose parts"):
        received_parts(Tree, state)


def test_parts_of_another_class_are_refused() -> None:
    """Only nnx's own objects are made so."""
    with pytest.raises(ProtocolError, match="whose parts"):
        received_parts(dict, {NNX_PARTS: ((), (), (), ())})
    parts = received_parts(Tree, {NNX_PARTS: (("a",), ("b",), (), ()), "a": 1, "b": "c"})
    assert isinstance(parts, ObjectParts)
    assert (parts.values, list(parts.static_items())) == ((1,), [("b", "c")])
