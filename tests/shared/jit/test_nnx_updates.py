"""What a function changes in flax nnx objects: by jax alone, without a server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import LostUpdateError, ProtocolError
from jaxd_protocol.jit.nnx_objects import NUMBERED, ObjectParts
from jaxd_protocol.jit.nnx_updates import ObjectCall, Updating, refusing_lost_updates
from jaxd_protocol.jit.static_args import infer_static_args

nnx: Any = pytest.importorskip("flax.nnx")


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
