"""What a function changes in flax nnx objects: by jax alone, without a server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import LostUpdateError
from jaxd_protocol.jit.nnx_updates import (
    SAME_ARGUMENT,
    Updating,
    refusing_lost_updates,
    variables_of,
)
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


def test_what_changed_is_returned_by_the_number_of_its_variable() -> None:
    """And nothing else; the caller's own object is as it was."""
    model = Tied()
    changes, result, marks = jax.jit(Updating(counted))(model, 3.0)
    variables = variables_of(((model, 3.0), {}))
    (number,) = changes
    assert variables[number] is model.count
    assert (int(changes[number]), int(model.count[...])) == (1, 0)
    np.testing.assert_array_equal(result, [3.0, 3.0])
    assert marks == []


def test_all_of_them_are_returned_where_the_caller_gives_up_its_own() -> None:
    """A donated array that did not change would be gone otherwise."""
    changes, _, _ = jax.jit(Updating(counted, all_of_them=True))(Tied(), 3.0)
    assert len(changes) == len(variables_of(Tied())) == 3


def test_a_variable_that_is_there_twice_is_changed_once() -> None:
    """Whichever place it is changed by, the other one sees it, and the first one brings it home."""
    model = Tied()
    numbers = {id(each): n for n, each in reversed(list(enumerate(variables_of(model))))}
    same = [numbers[id(each)] for each in variables_of(model)]

    def change(model: Any) -> Any:
        model.second[...] = model.second[...] + 1
        return model.first[...]

    changes, result, _ = jax.jit(Updating(change, same))(model)
    assert list(changes) == [numbers[id(model.first)]]
    np.testing.assert_array_equal(result, [2.0, 2.0])


def test_what_takes_the_place_of_a_variable_is_what_changed() -> None:
    """Its value is that of the caller's variable; where that one is there twice, it is an error."""

    def replace(model: Any) -> None:
        model.count = nnx.Variable(jnp.full((), 7, jnp.int32))

    changes, _, _ = jax.jit(Updating(replace))(Tied())
    assert [int(each) for each in changes.values()] == [7]
    with pytest.raises(LostUpdateError, match="is made of"):
        jax.jit(Updating(replace, same=(0, 1, 1)))(Tied())
    with pytest.raises(LostUpdateError, match="changes variables"):
        jax.jit(refusing_lost_updates(replace))(Tied())


def test_an_argument_in_the_result_is_marked() -> None:
    """By position or by name; another object is returned as what it is."""

    def same(model: Any, *, other: Any) -> Any:
        return {"model": model, "others": [other, other.first[...]]}

    _, result, marks = jax.jit(Updating(same))(Tied(), other=Tied())
    assert result["model"] == {SAME_ARGUMENT: {0: None}}
    assert result["others"][0] == {SAME_ARGUMENT: {"other": None}}
    assert marks == [None, None]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "mode", "eval"),
        lambda model: setattr(model, "more", nnx.Param(jnp.ones(2))),
        lambda model: delattr(model, "second"),
    ],
    ids=["attribute", "variable more", "variable less"],
)
@pytest.mark.parametrize("wrap", [Updating, refusing_lost_updates])
def test_another_structure_is_an_error(wrap: Any, change: Any) -> None:
    """Nobody would tell the caller's own object of it."""
    with pytest.raises(LostUpdateError, match=r"argument 0 \(a Tied\) is made of"):
        jax.jit(wrap(change))(Tied())


def test_a_new_value_is_an_error_where_it_would_be_lost() -> None:
    """In a call that is submitted, and in an object of another library's; not within a `State`."""
    jitted = jax.jit(Updating(counted, refuses=True))
    with pytest.raises(LostUpdateError, match=r"variables of flax nnx in argument 0 \(a Tied\)"):
        jitted(Tied(), 1.0)

    def by_state(state: Any) -> Any:
        model = nnx.merge(graph, state)
        return counted(model, 1.0), nnx.state(model)

    graph, state = nnx.split(Tied())
    _, new = jax.jit(refusing_lost_updates(by_state))(state)
    assert int(new["count"][...]) == 1
    with pytest.raises(LostUpdateError, match=r"in argument 1 \(a Tied\)"):
        jax.jit(refusing_lost_updates(lambda first, second: counted(second, 1.0)))(Tied(), Tied())


def test_moments_that_an_optimizer_keeps_in_a_state_are_variables() -> None:
    """A `State` is left out only where it is not part of an object."""
    optax: Any = pytest.importorskip("optax")
    optimizer = nnx.Optimizer(Tied(), optax.adam(0.1), wrt=nnx.Param)
    inside = [each for each in variables_of(optimizer) if each.shape == (2,)]
    assert len(inside) == 2
    assert variables_of(nnx.state(optimizer)) == []


def test_it_has_the_signature_and_the_name_of_the_function() -> None:
    """So that static arguments are found by name."""
    from jaxd_protocol.jit.options import Options

    updating = Updating(counted)
    assert infer_static_args(updating, Options(static_argnames=("x",))).positions == {1}
    assert updating.__qualname__ == counted.__qualname__
