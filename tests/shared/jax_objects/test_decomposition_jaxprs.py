"""Traced programs as parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxd_protocol.jax_objects.decomposition import jaxpr_parts
from tests.shared.jax_objects.shown import digest


def traced(function: Any, *arguments: Any) -> Any:
    return jax.make_jaxpr(function)(*arguments)


def test_programs_that_compute_the_same_way_are_equal() -> None:
    """Where they were written and what their variables are called does not count."""
    first = traced(lambda x: jnp.sin(x) * 2, 1.0)
    second = traced(lambda other: jnp.sin(other) * 2, 1.0)
    assert digest(first) == digest(second)


def test_a_literal_a_type_and_the_wiring_count() -> None:
    """Each of them is another program."""
    programs = [
        traced(lambda x, y: x - y * 2, 1.0, 1.0),
        traced(lambda x, y: x - y * 3, 1.0, 1.0),
        traced(lambda x, y: y - x * 2, 1.0, 1.0),
        traced(lambda x, y: x - y * 2, 1, 1),
        traced(lambda x, y: x + y * 2, 1.0, 1.0),
    ]
    assert len({digest(program) for program in programs}) == len(programs)


def test_constants_of_a_program_count() -> None:
    """They are arrays beside the equations."""
    first, second = jnp.arange(3), jnp.arange(3) + 1
    programs = traced(lambda x: x + first, 1.0), traced(lambda x: x + second, 1.0)
    assert digest(programs[0]) != digest(programs[1])


def test_variables_have_numbers_in_order_of_appearance() -> None:
    """So the numbers say how equations are connected."""
    parts = jaxpr_parts(traced(lambda x, y: (y, x + y), 1.0, 1.0).jaxpr)
    assert parts["invars"] == (0, 1)
    assert parts["outvars"] == (1, 2)
