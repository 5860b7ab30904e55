"""jax's private registry of node classes, as far as jaxd relies on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxd_protocol.pytree_classes import register_again, registration_of


@dataclasses.dataclass
class Registered:
    left: Any
    right: Any


jax.tree_util.register_dataclass(Registered, ["left", "right"], [])


def test_a_registered_class_tells_how_it_is_taken_apart() -> None:
    """Both functions work as jax itself uses them."""
    found = registration_of(Registered)
    assert found is not None
    children, structure = found[0](Registered(1, 2))
    assert tuple(children) == (1, 2)
    assert found[1](structure, children) == Registered(1, 2)


def test_a_class_that_was_never_registered_has_no_registration() -> None:
    """It travels as an ordinary class."""
    assert registration_of(type("Plain", (), {})) is None


def test_a_copy_of_the_class_can_be_registered_once_and_again() -> None:
    """The second time is for another blob with the same class, and changes nothing."""
    copy = dataclasses.make_dataclass("Copy", ["left", "right"])
    found = registration_of(Registered)
    assert found is not None
    register_again(copy, (lambda value: ((value.left, value.right), None), lambda _, c: copy(*c)))
    register_again(copy, found)
    assert jax.tree.leaves(copy(3, 4)) == [3, 4]
