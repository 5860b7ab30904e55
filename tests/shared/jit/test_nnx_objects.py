"""flax nnx objects: as trees, and what a function changes in them, by jax alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import LostUpdateError, ProtocolError
from jaxd_protocol.jit.nnx_objects import (
    NUMBERED,
    ObjectParts,
    PutTogether,
    TakenApart,
    contains_objects,
    received_parts,
)
from jaxd_protocol.jit.nnx_updates import ObjectCall, Updating, refusing_lost_updates
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_protocol.pytree.decoder import NNX_PARTS

nnx: Any = pytest.importorskip("flax.nnx")


class Tree(nnx.Module):  # type: ignore[misc]
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


class Tied(nnx.Module):  # type: ignore[misc]
    """Two layers that are one, a counter, and an attribute that is no array."""

    def __init__(self) -> None:
        self.first = nnx.Param(jnp.ones(2))
        self.second = self.first
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))
        self.mode = "train"


def counted(model: Any, x: Any) -> Any:
    """Changes one variable of two."""
    model.count[...] = model.count[...] + 1
    return x * model.first[...]


def called(function: Any, *args: Any, **kwargs: Any) -> tuple[ObjectCall, Any]:
    """A call under jax alone, and its reply."""
    call = ObjectCall.of(args, kwargs)
    assert call is not None
    return call, jax.jit(function)(*call.args, **call.kwargs)


def test_what_changed_is_returned_by_the_number_of_its_variable() -> None:
    """And nothing else; the caller's own object changes when the call is finished."""
    model = Tied()
    call, reply = called(Updating(counted), model, 3.0)
    (number,) = reply[0]
    assert call.objects[number] is model.count
    assert (int(reply[0][number]), int(model.count[...])) == (1, 0)
    assert reply[2:] == ([], [])
    np.testing.assert_array_equal(call.finish(reply), [3.0, 3.0])
    assert int(model.count[...]) == 1


def test_all_of_them_are_returned_where_the_caller_gives_up_its_own() -> None:
    """A donated array that did not change would be gone otherwise; each comes once."""
    model = Tied()
    call, (changes, _, _, _) = called(Updating(counted, all_of_them=True), model, 3.0)
    assert [call.objects[number] for number in changes] == [model.count, model.first]


def test_an_object_that_is_there_twice_travels_once() -> None:
    """And is one object in the function."""
    model = Tied()
    call, _ = called(Updating(lambda one, other: one is other), model, model)
    assert len(jax.tree.leaves((call.args, call.kwargs))) == 2


def test_another_class_or_number_is_no_update() -> None:
    """A reply that does not fit changes nothing."""
    model = Tied()
    call, _ = called(Updating(counted), model, 3.0)
    parts = ObjectParts(nnx.Linear, (), ("mode", "x"), (), (), ())
    replies: list[Any] = [
        ({}, None, [{0: parts}], []),
        ({}, None, [{9: parts}], []),
        ({0: jnp.ones(2)}, None, [], []),
        ({-1: jnp.ones(2)}, None, [], []),
        ({}, {NUMBERED: {9: None}}, [], [None]),
        ({}, {NUMBERED: {0: parts}}, [], [None]),
    ]
    for reply in replies:
        with pytest.raises(ProtocolError):
            call.finish(reply)
    assert model.mode == "train"


def test_a_new_value_is_an_error_where_it_would_be_lost() -> None:
    """In a call that is submitted, and in a call that nobody took apart; not within a `State`."""
    with pytest.raises(LostUpdateError, match=r"argument 0 \(a Tied\)"):
        called(Updating(counted, refuses=True), Tied(), 1.0)

    def by_state(state: Any) -> Any:
        model = nnx.merge(graph, state)
        return counted(model, 1.0), nnx.state(model)

    graph, state = nnx.split(Tied())
    _, new = jax.jit(refusing_lost_updates(by_state))(state)
    assert int(new["count"][...]) == 1
    with pytest.raises(LostUpdateError, match=r"argument 1 \(a Tied\)"):
        jax.jit(refusing_lost_updates(lambda first, second: counted(second, 1.0)))(Tied(), Tied())
    with pytest.raises(LostUpdateError, match=r"the argument 'model'"):
        jax.jit(refusing_lost_updates(lambda *, model: setattr(model, "mode", "eval")))(
            model=Tied()
        )


def test_no_objects_are_no_such_call() -> None:
    """Nor are a `State` and its variables, which are passed as values."""
    assert ObjectCall.of((nnx.state(Tied()), [1, {"x": None}]), {"y": np.ones(2)}) is None


def test_it_has_the_signature_and_the_name_of_the_function() -> None:
    """So that static arguments are found by name."""
    from jaxd_protocol.jit.options import Options

    updating = Updating(counted)
    assert infer_static_args(updating, Options(static_argnames=("x",))).positions == {1}
    assert updating.__qualname__ == counted.__qualname__
