from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.statics import NO_STATICS, Statics
from jaxd_server.signature import signature_of

FIRST = Statics(frozenset({0}), frozenset({"x"}))


def of(*args: Any, **kwargs: Any) -> Any:
    """The signature of a call without static arguments."""
    return signature_of(args, kwargs, NO_STATICS)


def static(value: Any) -> Any:
    """The signature of a call whose argument is static."""
    return signature_of((value,), {}, FIRST)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1.0, "b": 2}, {"b": 3, "a": 2.0}),
        (np.ones(3, np.float32), np.zeros(3, np.float32)),
        (np.ones(3, np.float32), jnp.ones(3, np.float32)),
        (np.float32(1), np.ones((), np.float32)),
        (jax.random.key(0), jax.random.key(1)),
        (1.0, float("nan")),
        ([None], [None]),
    ],
    ids=["dict order", "values", "numpy and jax", "numpy scalar", "keys", "floats", "None"],
)
def test_what_one_program_can_take_has_one_signature(one: Any, other: Any) -> None:
    """Only structure, shape, dtype and weak type count."""
    assert of(one) == of(other)
    assert hash(of(one)) == hash(of(other))


DIFFERENT = [
    (1, 1.0),
    (1, True),
    (1.0, 1j),
    (1.0, np.float32(1)),
    (1, np.int32(1)),
    (np.ones(3, np.float32), np.ones(4, np.float32)),
    (np.ones(3, np.float32), np.ones((3, 1), np.float32)),
    (np.ones(3, np.float32), np.ones(3, np.float16)),
    (jnp.asarray(1.0), np.float32(1)),
    (jnp.full(3, 1.0), jnp.full(3, 1.0, jnp.float32)),
    ((1, 2), [1, 2]),
    ({"a": 1}, {"b": 1}),
    ({"a": 1, "b": 2}, OrderedDict(a=1, b=2)),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (None, ()),
    (jax.random.key(0), jax.random.key_data(jax.random.key(0))),
    (jax.random.key(0), jax.random.key(0, impl="rbg")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_compiles_differently_has_another_signature(one: Any, other: Any) -> None:
    """Else a caller would get the result of somebody else's program."""
    assert of(one) != of(other)


def test_weak_types_count() -> None:
    """A Python number adapts to what it meets, an array does not."""
    assert jnp.asarray(1.0).weak_type
    assert of(jnp.asarray(1.0)) != of(jnp.asarray(1.0, jnp.float32))


def test_names_of_keyword_arguments_count_and_their_order_does_not() -> None:
    """As everywhere in Python."""
    assert of(a=1, b=2.0) == of(b=2.0, a=1)
    assert of(a=1) != of(b=1)
    assert of(1) != of(a=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, 4),
        (3, 3.0),
        (1, True),
        ("a", "b"),
        (0.0, -0.0),
        (("relu", 1), ("relu", True)),
        ((1, (2,)), (1, (2.0,))),
        ("1", b"1"),
        (None, False),
        (jnp.float32, jnp.bfloat16),
    ],
)
def test_static_values_are_told_apart_by_type_and_value(one: Any, other: Any) -> None:
    """Also where Python calls them equal, as 1 and True inside of a tuple."""
    assert static(one) != static(other)


@pytest.mark.parametrize("value", [3, "relu", (1, "a", None), float("nan"), jnp.tanh])
def test_equal_static_values_share_a_signature(value: Any) -> None:
    """Not a number, too, which is not equal to itself."""
    assert static(value) == static(value)
    assert hash(static(value)) == hash(static(value))


def test_a_static_value_is_never_taken_for_a_traced_one() -> None:
    """The same number in the same place is another program."""
    assert static(3) != of(3)


def test_static_arguments_are_found_by_position_and_by_name() -> None:
    """And the others beside them are traced."""

    def call(first: int, rest: float, x: str) -> Any:
        return signature_of((first, rest), {"x": x, "y": 1.0}, FIRST)

    assert call(1, 1.0, "a") == call(1, 2.0, "a")
    assert call(1, 1.0, "a") != call(2, 1.0, "a")
    assert call(1, 1.0, "a") != call(1, 1.0, "b")


@dataclass(frozen=True)
class Setting:
    width: int


def test_objects_can_be_static() -> None:
    """By their own idea of equality, as in `jax.jit`."""
    assert static(Setting(1)) == static(Setting(1))
    assert static(Setting(1)) != static(Setting(2))


def test_a_static_value_that_cannot_be_hashed_is_refused() -> None:
    """With jax's own words, and what to do."""
    with pytest.raises(ValueError, match=r"Non-hashable static arguments.*a tuple for a list"):
        static([1, 2])


def test_an_object_that_jax_cannot_trace_is_refused() -> None:
    """Whether it is an argument or lies deep in one."""
    with pytest.raises(ArgumentError, match=r"type Setting.*static_argnames"):
        of({"deep": [Setting(1)]})
    with pytest.raises(ArgumentError, match="type str"):
        signature_of((1, "text"), {}, FIRST)
