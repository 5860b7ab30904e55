"""Installed modules with some attributes of a client's."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from jaxd_protocol.pickling.unpack.private_modules import (
    PatchedModule,
    PrivateModules,
    installed_module,
    patched_module,
)


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


def test_a_value_that_cannot_be_compared_differs() -> None:
    """Such as an array, which has no truth value."""
    json_of_server: Any = json
    json_of_server.numbers = np.ones(2)
    try:
        assert isinstance(
            patched_module(PrivateModules(), "json", {"numbers": np.ones(2)}), PatchedModule
        )
    finally:
        del json_of_server.numbers


def test_an_installed_module_is_imported() -> None:
    """The inner one, not its package."""
    assert installed_module("json.tool") is sys.modules["json.tool"]
