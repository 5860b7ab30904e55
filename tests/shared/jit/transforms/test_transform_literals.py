"""Transformations as literals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd_protocol.jit.transforms import (
    NotLiteral,
    decode_transformation,
    describe_transformations,
    display_name,
    encode_transformation,
)
from jaxd_protocol.jit.transforms.transform_literals import ON_INSTANCE, with_bound_method
from jaxd_protocol.pytree import dump_literal
from tests.ids import row, stable_id

AXES: Any = [0, (1, None), [2], {"b": 0, "a": [None, 1]}, {}, (), "i", {("t", 1): True}, -1.5]


def test_what_is_written_can_be_read() -> None:
    """Every container as what it is: jax tells lists from tuples."""
    for value in AXES:
        with row(value):
            literal = encode_transformation("vmap", {"in_axes": value, "out_axes": 0})
            assert decode_transformation(literal) == ("vmap", {"in_axes": value, "out_axes": 0})
            assert type(decode_transformation(literal)[1]["in_axes"]) is type(value)


def test_equal_options_have_equal_bytes_and_others_have_not() -> None:
    """The order in which somebody wrote them down does not count; types do."""

    def spelled(value: Any) -> bytes:
        return dump_literal(encode_transformation("vmap", {"in_axes": value}))

    assert spelled({"a": 0, "b": 1}) == spelled({"b": 1, "a": 0})
    one = [0, False, (0,), [0], {"a": 0}, {"a": (0,)}, {0: "a"}, None, ()]
    assert len(set(map(spelled, one))) == len(one)
    assert len({dump_literal(encode_transformation(name, {})) for name in ("grad", "vmap")}) == 2


def test_a_number_of_numpy_is_a_number() -> None:
    """As jax takes it for an axis."""
    assert encode_transformation("grad", {"argnums": np.int64(1)}) == encode_transformation(
        "grad", {"argnums": 1}
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, (0, len), {"a": np.ones(2)}], ids=stable_id)
def test_what_has_no_place_in_a_key_is_refused(value: Any) -> None:
    """Also inside of containers."""
    with pytest.raises(NotLiteral, match="is not a plain value"):
        encode_transformation("vmap", {"in_axes": value})


def test_people_read_the_last_one_first() -> None:
    """As it would be written in a program; what is as usual is not said."""
    grad = encode_transformation("grad", {"argnums": 1, "has_aux": False})
    flat = [encode_transformation("flat", {}), encode_transformation("flat_vmap", {"axes": (0,)})]
    vmap = encode_transformation("vmap", {"in_axes": 0, "out_axes": 0})
    assert display_name("step", [grad, vmap]) == "vmap(grad(step))"
    assert display_name("step", [grad, *flat]) == "vmap(grad(step))"
    assert (describe_transformations([grad, vmap]), describe_transformations([])) == (
        "grad(argnums=1), vmap",
        "none",
    )
    assert describe_transformations([grad, *flat]) == "grad(argnums=1), vmap"


def test_those_of_a_method_are_one_of_its_function() -> None:
    """Each that comes behind them joins them; what was done to the function stays before."""
    grad, vmap, jvp = (
        encode_transformation(name, {"argnums": 1}) for name in ("grad", "vmap", "jvp")
    )
    one = with_bound_method((), grad)
    two = with_bound_method(one, vmap)
    assert [decode_transformation(each) for each in two] == [(ON_INSTANCE, {"by": (grad, vmap)})]
    assert with_bound_method((jvp,), grad) == (jvp, *one)
    assert len({one, two, (grad,), (grad, vmap)}) == 4
    assert display_name("M.loss", (jvp, *two)) == "vmap(grad(jvp(M.loss)))"
    assert describe_transformations(two) == "grad(argnums=1), vmap(argnums=1)"
