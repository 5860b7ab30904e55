"""Installed modules with some attributes of a client's."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.pickling.unpack.private_modules import (
    PatchedModule,
    PrivateModules,
    installed_module,
    patched_module,
)
from tests.ids import stable_id


def test_an_overlay_falls_through_to_the_real_module() -> None:
    """Only the attributes that came are others."""
    found = patched_module(PrivateModules(), "json", {"dumps": "mine"})
    assert isinstance(found, PatchedModule)
    assert found.dumps == "mine"
    assert found.loads is json.loads
    assert "loads" in dir(found)
    assert json.dumps(1) == "1"


def test_equal_attributes_need_no_overlay() -> None:
    """The server's module is used as it is."""
    assert (
        patched_module(PrivateModules(), "json", {"__name__": "json", "dumps": json.dumps}) is json
    )


def test_a_function_has_one_overlay_of_a_module() -> None:
    """Whichever way it gets there."""
    blob = PrivateModules()
    first = patched_module(blob, "json", {"dumps": "mine"})
    assert patched_module(blob, "json", {"dumps": "mine"}) is first is blob.patched_modules["json"]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(1, True), (0.0, -0.0), ([1], [1.0]), (np.ones(2), np.ones(2, int)), (object(), object())],
    ids=stable_id,
)
def test_a_value_that_only_looks_equal_differs(mine: Any, theirs: Any) -> None:
    """It counts in the key as what it is, and so it arrives as that."""
    json_of_server: Any = json
    json_of_server.made_up = mine
    try:
        assert patched_module(PrivateModules(), "json", {"made_up": mine}) is json
        found = patched_module(PrivateModules(), "json", {"made_up": theirs})
    finally:
        del json_of_server.made_up
    assert isinstance(found, PatchedModule)
    assert found.made_up is theirs


def test_an_installed_module_is_imported() -> None:
    """The inner one, not its package."""
    assert installed_module("json.tool") is sys.modules["json.tool"]
