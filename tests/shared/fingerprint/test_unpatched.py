"""Whether what an installed module has is its own."""

from __future__ import annotations

import functools
import json
import math
import os.path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.fingerprint.unpatched import globals_module, is_plain_data, is_unpatched
from jaxd_protocol.packages.installed import is_local_module
from tests.ids import stable_id
from tests.shared.fingerprint.defining import define


def mine(x: Any) -> Any:
    """A function of the user's."""
    return x


class Mine:
    """A class of the user's."""

    def method(self, x: Any) -> Any:
        """A method of the user's."""
        return x


def judged(module: ModuleType, name: str, value: Any) -> bool:
    """Whether it certainly belongs there."""
    return is_unpatched(module, name, value, is_local_module)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (math, "sin", math.sin),
        (math, "pi", math.pi),
        (np, "inf", math.inf),
        (np, "nan", np.nan),
        (np, "newaxis", None),
        (np, "__version__", "9.9"),
        (np, "sum", np.sum),
        (np, "add", np.add),
        (np, "float32", np.float32),
        (jax.numpy, "sum", jax.numpy.sum),
        (jax, "jit", jax.jit),
        (json, "dumps", json.dumps),
        (json, "JSONDecoder", json.JSONDecoder),
        (json, "decoder", json.decoder),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_what_a_module_came_with_is_its_own(module: ModuleType, name: str, value: Any) -> None:
    """Its functions and classes, wherever in the package they are from, and known constants."""
    assert judged(module, name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dumps", mine),
        ("dumps", jax.jit(mine)),
        ("dumps", functools.partial(mine, 1)),
        ("dumps", functools.partial(json.dumps, indent=2)),
        ("dumps", functools.wraps(json.dumps)(lambda x: x)),
        ("dumps", jax.tree_util.Partial(mine)),
        ("dumps", Mine().method),
        ("dumps", json.loads),
        ("dumps", math.sin),
        ("JSONDecoder", Mine),
        ("limit", 10),
        ("pi", 3.0),
        ("__limits__", [1, 2]),
        ("table", {"a": (1, 2)}),
        ("weights", np.zeros(2)),
        ("settings", Mine()),
    ],
    ids=stable_id,
)
def test_what_somebody_may_have_put_there_is_not(name: str, value: Any) -> None:
    """The user's functions, however they are wrapped, functions of another name, and data."""
    assert not judged(json, name, value)


def test_a_function_from_another_package_is_not_its_own() -> None:
    """`os.path.join` is `posixpath`'s: it travels along, which is harmless."""
    assert not judged(np, "join", os.path.join)


@pytest.mark.parametrize(
    "value",
    [1, "a", None, [], [1, [2.0, ("a", b"b")]], {"a": {1, 2}, (1, 2): frozenset({3})}],
    ids=stable_id,
)
def test_plain_data_is_what_holds_only_plain_values(value: Any) -> None:
    """Keys included."""
    assert is_plain_data(value)


@pytest.mark.parametrize(
    "value",
    [mine, Mine(), [Mine()], {"a": [mine]}, {mine: 1}, np.zeros(1), list(range(1001)), range(2)],
    ids=lambda value: type(value).__name__,
)
def test_other_data_is_not_plain(value: Any) -> None:
    """Also a container that would take long to look at."""
    assert not is_plain_data(value)


def test_a_function_is_at_home_where_its_globals_are() -> None:
    """Whatever `functools.wraps` has copied."""
    made: Any = define("def f(x): return x").f
    made.__module__ = "json"
    assert globals_module(made) == "made_up"
