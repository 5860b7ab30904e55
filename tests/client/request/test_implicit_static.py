from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.request.arguments import (
    check_not_array_like,
    check_not_masked,
    is_code,
    is_plain_object,
    name_of,
)
from jaxd_protocol.errors import ArgumentError
from tests.client.fresh_process import in_a_fresh_process


class Colour(Enum):
    RED = 1


@dataclass
class Setting:
    width: int


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any

    def __call__(self, x: Any) -> Any:
        return self.w * x


@pytest.mark.parametrize("value", ["text", b"text", Colour.RED, Setting(1), len, Setting, {1}, ...])
def test_what_jax_takes_for_a_leaf_is_plain(value: Any) -> None:
    """Whatever it is."""
    assert is_plain_object(value)


def test_what_jax_takes_apart_is_not() -> None:
    """Not even when it can be called."""
    assert not is_plain_object(Layer(1.0))
    assert not is_code(Layer(1.0))
    assert all(map(is_code, (len, Setting, test_what_jax_takes_apart_is_not)))
    assert not any(map(is_code, ("text", 1.0, Colour.RED)))


def test_without_jax_only_the_server_knows_the_classes_of_packages() -> None:
    """Of what is the user's own, of code and of members of enums this process is sure."""
    program = (
        "import json, sys, enum, fractions, collections\n"
        "from jaxd.request.arguments import is_plain_object\n"
        "class Own: pass\n"
        "Kind = enum.Enum('Kind', 'A')\n"
        "Point = collections.namedtuple('Point', 'x')\n"
        "values = [Own(), Kind.A, len, Own, 'a', ..., fractions.Fraction(1), {1}]\n"
        "values += [collections.defaultdict(int), Point(1.0)]\n"
        "print(json.dumps([is_plain_object(value) for value in values]))\n"
        "assert 'jax' not in sys.modules\n"
    )
    assert in_a_fresh_process(program) == [True] * 6 + [False] * 4


class Convertible:
    def __jax_array__(self) -> Any:
        return jnp.ones(3)


class Foreign:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3)


class Typed:
    def __init__(self) -> None:
        self.dtype = np.dtype("float32")


def test_arrays_of_others_are_refused() -> None:
    """One that says how jax can have it with jax's own error."""
    for value in (Foreign(), Typed()):
        with pytest.raises(ArgumentError, match=r"numpy\.asarray"):
            check_not_array_like(value)
    with pytest.raises(ValueError, match="__jax_array__"):
        check_not_array_like(Convertible())
    for other in ("text", Setting(1), jnp.float32, Typed, Foreign, np.sin, len):
        check_not_array_like(other)


def test_masked_arrays_are_refused() -> None:
    """jax would lose the mask."""
    check_not_masked(np.ones(3))
    with pytest.raises(ValueError, match="masked arrays are not supported"):
        check_not_masked(np.ma.array([1.0], mask=[True]))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("text", ""),
        ((1, "a"), ""),
        (Colour.RED, "Colour.RED"),
        (Setting(3), "an object of Setting"),
        (Setting, "Setting"),
        (len, "len"),
        (np.sin, "an object of ufunc"),
    ],
)
def test_what_people_call_it_is_the_same_in_each_call(value: Any, name: str) -> None:
    """No address is in it: it is part of what stands for a call."""
    assert name_of(value) == name
