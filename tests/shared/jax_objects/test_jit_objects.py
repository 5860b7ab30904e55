"""Options of jitted functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

from jaxd_protocol.jax_objects.jit_objects import jit_extras, jit_options, jit_parts, make_jit
from tests.shared.jax_objects.samples_jax import product, samples

JITTED = [name for name in samples() if name.startswith("jit ") and name != "jit of jax"]


@pytest.mark.parametrize("name", ["jit", *JITTED])
def test_the_options_make_an_equal_object(name: str) -> None:
    """Everything but the attributes that were set on it afterwards."""
    jitted = samples()[name]
    again = make_jit(jitted._fun, jit_options(jitted))
    assert jit_parts(again) | jit_extras(jitted) == {
        key: value for key, value in jit_parts(jitted).items() if not key.startswith("attribute")
    } | jit_extras(jitted)


def test_without_options_there_are_none() -> None:
    """What is shipped is as short as what was written."""
    assert {key: value for key, value in jit_options(jax.jit(product)).items() if value} == {}


def test_the_function_inside_is_the_one_that_was_given() -> None:
    """It has its name and its globals."""
    assert jit_parts(jax.jit(product))["fun"] is product


def test_static_arguments_are_static_again() -> None:
    """A static argument is a Python value when the function is traced."""
    seen: list[Any] = []

    def look(x: Any, n: Any) -> Any:
        seen.append(n)
        return x

    make_jit(look, jit_options(jax.jit(look, static_argnames="n")))(1.0, n=3)
    assert seen == [3]


def test_the_function_is_the_one_that_is_compiled() -> None:
    """Not the one that somebody has said it stands for, as decorators do."""
    compiled = functools.partial(product, n=2)
    jitted: Any = functools.wraps(product)(jax.jit(compiled))
    assert jit_parts(jitted)["fun"] is compiled
