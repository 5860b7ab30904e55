"""What belongs to jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import sharding
from jax.sharding import Mesh, NamedSharding

from tests.shared.fingerprint.defining import digest_of, function, walk_of


def one(x: Any) -> Any:
    """A function of the user's."""
    return x


def other(x: Any) -> Any:
    return -x


PartitionSpec: Any = sharding.PartitionSpec  # it has no types

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "jit with donation": lambda f: jax.jit(f, donate_argnums=0),
    "jit with statics": lambda f: jax.jit(f, static_argnums=0),
    "custom_jvp": jax.custom_jvp,
    "custom_vjp": jax.custom_vjp,
    "vmap": jax.vmap,
    "grad": jax.grad,
    "checkpoint": jax.checkpoint,
    "Partial": jax.tree_util.Partial,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_function_inside_counts(name: str) -> None:
    """Wrapped again it is the same."""
    wrap = WRAPPERS[name]
    assert digest_of(wrap(one)) == digest_of(wrap(one)) != digest_of(wrap(other))


def test_how_it_is_wrapped_counts() -> None:
    """With the options of it."""
    found = {name: digest_of(wrap(one)) for name, wrap in WRAPPERS.items()}
    assert len({*found.values(), digest_of(one)}) == len(found) + 1


@pytest.mark.parametrize("kind", [jax.custom_jvp, jax.custom_vjp])
def test_rules_of_derivatives_count(kind: Any) -> None:
    """They decide about results as the function does."""

    def made(rule: Any) -> bytes:
        wrapped = kind(function("return x"))
        wrapped.defjvp(rule) if kind is jax.custom_jvp else wrapped.defvjp(rule, rule)
        return digest_of(wrapped)

    assert made(one) == made(one) != made(other)


def test_a_rule_that_is_set_later_is_noticed() -> None:
    """On the same object."""
    wrapped = jax.custom_jvp(one)
    guards = walk_of(function("return W(x)", W=wrapped)).guards
    assert guards.hold()
    wrapped.defjvp(other)
    assert not guards.hold()


def test_a_jitted_function_of_a_library_counts_by_its_name() -> None:
    """Nothing in it is looked at."""
    walked = walk_of(jax.nn.relu)
    assert set(walked.fingerprint.packages) == {"jax"}
    assert digest_of(jax.nn.relu) != digest_of(jax.nn.silu)


def test_an_object_around_a_jitted_function_of_a_library() -> None:
    """By its name, and by what else it holds, which somebody may set."""
    lineax: Any = pytest.importorskip("lineax")
    solve = lineax.linear_solve
    made = function("return SOLVE(x)", SOLVE=solve)
    walked, before = walk_of(made), digest_of(made)
    object.__setattr__(solve, "filter_warning", not solve.filter_warning)
    try:
        assert not walked.guards.hold()
        assert digest_of(made) != before
    finally:
        object.__setattr__(solve, "filter_warning", not solve.filter_warning)
    assert digest_of(made) == before


def test_what_is_only_a_value_is_the_same_wherever_it_is_met() -> None:
    """jax makes equal ones the same object whenever it likes."""

    def spec() -> Any:
        return PartitionSpec("a", None)

    first = spec()
    assert digest_of([first, first]) == digest_of([spec(), spec()])
    assert digest_of([first]) != digest_of([PartitionSpec("b", None)])


def test_a_sharding_counts_by_mesh_and_spec() -> None:
    """Devices by their place, not by their object."""

    def sharded(axis: str) -> Any:
        mesh = Mesh(np.array(jax.devices()[:1]), (axis,))
        return NamedSharding(mesh, PartitionSpec(axis))

    assert digest_of([sharded("a")]) == digest_of([sharded("a")])
    assert digest_of([sharded("a")]) != digest_of([sharded("b")])


def test_the_structure_of_a_tree_counts() -> None:
    """With the classes in it."""
    structures = [
        jax.tree_util.tree_structure(tree) for tree in ([1], (1,), [1, 2], {"a": 1}, {"b": 1})
    ]
    assert len({digest_of([structure]) for structure in structures}) == 5
    assert digest_of([structures[0]]) == digest_of([jax.tree_util.tree_structure([5])])


def test_a_mapping_of_flax_counts_in_any_order() -> None:
    """As flax compares it: the metadata of variables is sorted anew on the way through a tree."""
    mapping = pytest.importorskip("flax.typing").HashableMapping
    found = mapping({"ref": False, "hijax": [1]})
    assert digest_of(found) == digest_of(mapping({"hijax": [1], "ref": False}))
    assert digest_of(found) != digest_of(mapping({"hijax": [2], "ref": False}))
    assert digest_of(found) != digest_of(mapping({"hijax": [1], "rev": False}))
    assert digest_of({"a": 1, "b": 2}) != digest_of({"b": 2, "a": 1})
