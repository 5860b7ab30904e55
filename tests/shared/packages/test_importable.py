"""The names under which installed objects can be imported."""

from __future__ import annotations

import collections
import json
import sys
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.packages.importable import find_object, importable_name, name_within


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (len, ("builtins", "len")),
        (json.dumps, ("json", "dumps")),
        (json.JSONDecoder.decode, ("json.decoder", "JSONDecoder.decode")),
        (collections.OrderedDict, ("collections", "OrderedDict")),
        (np.sum, ("numpy", "sum")),
        (jax.Array, ("jax", "Array")),
        (type(None), ("types", "NoneType")),
    ],
)
def test_an_installed_object_has_a_name_that_leads_to_it(value: Any, name: Any) -> None:
    """On Python 3.11 `jax.Array` calls itself `jaxlib._jax.Array` in the module `jax`."""
    assert importable_name(value) == name
    assert find_object(*name) is value


def test_local_objects_have_none() -> None:
    """This module is a user's own."""
    assert importable_name(test_local_objects_have_none) is None


def test_a_name_that_leads_to_another_object_does_not_count() -> None:
    """A copy of an installed function is not that function."""

    def copy() -> None: ...

    copy.__module__, copy.__qualname__, copy.__name__ = "json", "dumps", "dumps"
    assert importable_name(copy) is None


def test_a_name_counts_only_as_long_as_it_leads_to_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody may put another function in its place."""
    original = json.dumps
    assert importable_name(original) == ("json", "dumps")
    monkeypatch.setattr(json, "dumps", lambda value: "")
    assert importable_name(original) is None


def test_objects_inside_extension_modules_have_names() -> None:
    """`jaxlib._jax.pytree` is no module that can be imported, but `jaxlib._jax` is."""
    name = importable_name(jax.tree_util.PyTreeDef)
    assert name is not None
    assert find_object(*name) is jax.tree_util.PyTreeDef


def test_an_object_that_does_not_know_its_name_is_found_by_looking() -> None:
    """Public modules come before private ones."""
    assert name_within("jax", jax.lax.sin_p) == ("jax.lax", "sin_p")
    assert name_within("jax", object()) is None


def test_a_module_that_was_loaded_later_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of places is made anew when there are more modules."""
    thing = object()
    assert name_within("later", thing) is None
    module = ModuleType("later")
    module.thing = thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "later", module)
    assert name_within("later", thing) == ("later", "thing")


def test_what_takes_the_place_of_another_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that has changed is looked at again when there are more modules."""
    before, after, twice = object(), object(), object()
    module = ModuleType("changed")
    module.thing, module.first, module.second = before, twice, twice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "changed", module)
    assert name_within("changed", before) == ("changed", "thing")
    assert name_within("changed", twice) == ("changed", "first")
    module.thing = after  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "changed.more", ModuleType("changed.more"))
    assert name_within("changed", after) == ("changed", "thing")
    assert name_within("changed", before) is None


def test_a_name_that_the_server_has_not_is_an_import_error_with_a_way_out() -> None:
    """The server may have another version of the package."""
    with pytest.raises(ImportError, match=r"the server's json has no missing.*on the server"):
        find_object("json", "missing")
