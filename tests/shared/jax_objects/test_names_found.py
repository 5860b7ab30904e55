"""Names of jax objects that do not know their own."""

from __future__ import annotations

import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest  # noqa: TC002 - the fixture is a test's argument

from jaxd_protocol.jax_objects.names import name_of_jax_object
from tests.shared.jax_objects.samples_jax import sine, up


def test_a_primitive_is_found_in_the_public_modules_of_jax() -> None:
    """It says nothing about where it is."""
    assert name_of_jax_object(jax.lax.sin_p) == ("jax.lax", "sin_p")


def test_what_says_its_name_is_not_searched_for() -> None:
    """`jnp.sin` knows it."""
    assert name_of_jax_object(jnp.sin) == ("jax.numpy", "sin")


def test_local_objects_have_no_name_to_travel_by() -> None:
    """They have one here, and the server has not the module."""
    assert name_of_jax_object(up) is None
    assert name_of_jax_object(sine) is None


def test_a_primitive_of_another_installed_package_is_found_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rules say which package it may be from."""
    module = ModuleType("installed_one")
    module.__spec__ = jax.__spec__
    module.__file__ = jax.__file__
    monkeypatch.setitem(sys.modules, "installed_one", module)

    def rule() -> None: ...

    rule.__module__ = "installed_one"
    module.own_p = type(jax.lax.sin_p)("own")  # type: ignore[attr-defined]
    module.own_p.def_impl(rule)
    assert name_of_jax_object(module.own_p) == ("installed_one", "own_p")
