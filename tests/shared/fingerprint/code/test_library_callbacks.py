"""What an installed module gives to be called back: read from its code, found by its name there."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from jaxd_protocol.fingerprint.code.library_callbacks import (
    given_function,
    is_library,
    place_given,
)
from jaxd_protocol.fingerprint.data_model import Origin
from tests.fake_packages import FakeSite

SOLVER = """
import functools, os, shutil
import jax
from jax.experimental import io_callback
from gives_back import checks as other
from gives_back.checks import _check_order, unused
from os import system

def _check(x): pass
def wipe(path): os.remove(path)

class Solver:
    def __init__(self, x):
        jax.debug.callback(_check, x)
        io_callback(functools.partial(_part, n=1), None, x)

def solve(x, own):
    from gives_back.checks import late
    def body(i, x):
        jax.debug.callback(_check_order, x)
        jax.debug.callback(late, x)
        jax.debug.callback(other.of_module, x)
        return x
    jax.debug.callback(own, x)
    jax.debug.callback(system, "true")
    jax.debug.callback(shutil.rmtree, "/nowhere")
    wipe(unused)
    return body(0, x)

def _part(x, n): pass
"""
CHECKS = "\n".join(f"def {n}(x): pass" for n in ("_check_order", "unused", "late", "of_module"))


@pytest.fixture
def solver(site: FakeSite) -> Any:
    """A module of an installed package."""
    names = ("gives_back", "gives_back.checks", "gives_back.solver")
    files = dict(zip(names, ("", CHECKS, SOLVER), strict=True))
    places = {name: f"{name.replace('.', '/')}.py" for name in names[1:]}
    places["gives_back"] = "gives_back/__init__.py"
    site.install("gives-back", "1.0", {places[name]: text for name, text in files.items()})
    return importlib.import_module("gives_back.solver")


def given(kind: Any, name: str, *names: str) -> Any:
    """What the solver gives by that name."""
    return given_function("gives_back.solver", Origin(kind, name, names))


def test_what_its_code_gives_is_found(solver: Any) -> None:
    """In methods, partials, nested functions; its own, and what it imports."""
    checks = sys.modules["gives_back.checks"]
    assert given("global", "_check") is solver._check
    assert given("global", "_part") is solver._part
    assert given("global", "_check_order") is checks._check_order
    assert given("global", "other", "of_module") is checks.of_module
    assert given("module", "gives_back.checks", "late") is checks.late


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("global", "wipe"),
        ("global", "unused"),
        ("global", "system"),
        ("global", "shutil.rmtree"),
        ("global", "solve"),
        ("variable", "own"),
        ("module", "os.system"),
    ],
)
def test_nothing_else_is_found(solver: Any, kind: str, name: str) -> None:
    """What it only calls, what is Python's, and its parameters."""
    assert solver is not None
    with pytest.raises(LookupError):
        given(kind, *name.split("."))


def test_only_installed_packages_count(solver: Any) -> None:
    """Neither local modules, nor Python, jax, numpy or jaxd: what these give runs on the server."""
    assert is_library(solver.__name__)
    modules = (__name__, "__main__", "os", "jax._src.debugging", "numpy", "jaxd_protocol.errors")
    assert not any(map(is_library, modules))


def test_the_place_of_a_function(solver: Any) -> None:
    """The first module that gives it, under the name that stands there."""
    checks = sys.modules["gives_back.checks"]
    modules = ("os", "gives_back.checks", "not.loaded", "gives_back.solver")
    assert place_given(checks._check_order, modules) == (
        "gives_back.solver",
        Origin("global", "_check_order"),
    )
    assert place_given(solver.wipe, modules) is None
    assert place_given(sys.modules["importlib"].import_module, modules) is None
