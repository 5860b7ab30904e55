"""Whether what an installed module has is its own."""

from __future__ import annotations

import functools
import json
import math
import os.path
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.fingerprint.unpatched import (
    is_replaced_constant,
    is_unpatched,
)
from jaxd_protocol.packages.installed import is_local_module
from tests.ids import row


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


def test_what_a_module_came_with_is_its_own() -> None:
    """Its functions and classes, wherever in the package they are from, and known constants."""
    rows: list[tuple[ModuleType, str, Any]] = [
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
        (jax.nn, "swish", jax.nn.silu),
        (jax.numpy, "ndarray", jax.Array),
        (jax.numpy, "bool_", jax.numpy.bool_),
        (jax.numpy, "csingle", jax.numpy.complex64),
        (jax.numpy, "finfo", jax.numpy.finfo),
        (jax.dtypes, "issubdtype", vars(jax.dtypes)["issubdtype"]),
        (jax.debug, "print", jax.debug.print),
        (jax.sharding, "Sharding", jax.sharding.Sharding),
        (jax, "Device", jax.Device),
        (jax, "checkpoint_policies", jax.checkpoint_policies),
        (jax, "float0", jax.float0),
        (jax, "memory", jax.memory),
        (jax.debug, "log", jax.debug.log),
        (jax.lax, "PrecisionLike", jax.lax.PrecisionLike),
        (jax.lax, "random_gamma_grad", jax.lax.random_gamma_grad),
        (jax.tree_util, "KeyPath", jax.tree_util.KeyPath),
    ]
    for module, name, value in rows:
        with row((module, name, value)):
            assert judged(module, name, value)


def test_what_somebody_may_have_put_there_is_not() -> None:
    """The user's functions, however they are wrapped, functions of another name, and data."""
    rows: list[tuple[str, Any]] = [
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
    ]
    for name, value in rows:
        with row((name, value)):
            assert not judged(json, name, value)


class Counting:
    """An object of the user's around a function of a library."""

    def __init__(self, function: Any) -> None:
        self.__name__ = getattr(function, "__name__", "local_devices")  # a cache may have none
        self.__wrapped__ = function


def test_an_object_around_a_function_of_the_library_is_not_its_own() -> None:
    """Whatever it says of itself."""
    assert not judged(jax, "local_devices", Counting(jax.local_devices))
    assert not judged(jax.nn, "swish", Counting(jax.nn.silu))
    assert judged(jax, "local_devices", jax.local_devices)


def test_another_function_of_the_library_under_such_a_name_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor where it was put into each module that has the name."""
    assert not judged(jax.nn, "swish", jax.nn.gelu)
    functions = import_module(jax.nn.silu.__module__)
    monkeypatch.setattr(functions, "swish", jax.nn.gelu)
    assert not judged(jax.nn, "swish", jax.nn.gelu)
    monkeypatch.setattr(functions, "silu", jax.nn.gelu)
    assert not judged(jax.nn, "swish", jax.nn.gelu)


def test_what_a_module_would_have_made_otherwise_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of other arguments, of something that was put there, or changed in place."""
    log, policies = jax.debug.log, jax.checkpoint_policies
    assert not judged(jax.debug, "log", functools.partial(log.func))
    assert not judged(jax.debug, "log", functools.partial(log.func, 1, **log.keywords))
    assert not judged(jax.debug, "log", functools.partial(log.func, _use_logging=1))
    assert not judged(jax.debug, "log", functools.partial(mine, **log.keywords))
    assert not judged(jax, "float0", np.dtype("f4"))
    assert not judged(jax.lax, "PrecisionLike", str | None)
    assert not judged(jax.lax, "random_gamma_grad", jax.lax.digamma)
    monkeypatch.setattr(policies, "dots_saveable", policies.nothing_saveable)
    assert not judged(jax, "checkpoint_policies", policies)
    home = import_module(log.func.__module__)
    monkeypatch.setattr(home, "debug_print", mine)
    assert not judged(jax.debug, "log", functools.partial(mine, **log.keywords))


ORIGINS = """
from .sub.inner import first as renamed, first
from {package}.sub import inner
chained = other = make = len
attribute = inner.first
twice = first
twice = make
deleted = first
del deleted
def function(): pass
def assigns():
    global late
    late = make
late = first
if renamed:
    conditional = first
"""


def test_names_are_followed_to_where_the_code_of_the_module_takes_them_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is assigned twice, or by a function, may be anything."""
    package = tmp_path / "site-packages" / "origins_of"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text(ORIGINS.format(package="origins_of"))
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "inner.py").write_text("def first(): pass\ndef second(): pass\n")
    monkeypatch.syspath_prepend(package.parent)
    module = import_module("origins_of")
    first = import_module("origins_of.sub.inner").first
    found = {
        name
        for name in ("renamed", "attribute", "conditional", "twice", "late", "deleted")
        if judged(module, name, first)
    }
    assert found == {"renamed", "attribute", "conditional", "deleted"}
    second = import_module("origins_of.sub.inner").second
    assert not judged(module, "renamed", second)
    assert judged(module, "function", module.function)
    for name in [name for name in sys.modules if name.startswith("origins_of")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_function_from_another_package_is_not_its_own() -> None:
    """`os.path.join` is `posixpath`'s: it travels along, which is harmless."""
    assert not judged(np, "join", os.path.join)


LIBRARY = """
import math
RATE = 0.5
SIZES = (1, 2)
BY_PLATFORM = 1 if math.pi > 4 else 2
try:
    EITHER = 5
except ImportError:
    EITHER = 6
COMPUTED = math.sqrt(4.0)
FROM_ELSEWHERE = None
LIST = [1]
DELETED = 7
del DELETED
STATE = 0

def change():
    global STATE
    STATE += 1
"""
LIBRARY += "".join(f"NUMBER_{number} = {number}\n" for number in range(300))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A library that assigns to its names in all ways."""
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "has_constants.py").write_text(LIBRARY)
    sys.path.insert(0, str(folder))
    yield import_module("has_constants")
    sys.path.remove(str(folder))
    del sys.modules["has_constants"]


def test_a_constant_is_replaced_where_the_module_assigns_others(library: ModuleType) -> None:
    """And nothing else: what it computes or changes itself may be anything."""
    rows: list[tuple[str, Any, bool]] = [
        ("RATE", 0.5, False),
        ("RATE", 0.25, True),
        ("RATE", math.nan, True),
        ("SIZES", (1, 2), False),
        ("SIZES", (1, 2.0), True),
        ("SIZES", [1, 2], True),
        ("RATE", np.float32(0.5), True),
        ("RATE", np.array(0.5), True),
        ("RATE", print, False),  # no value; see `is_own_code`
        ("EITHER", 5, False),
        ("EITHER", 6, False),
        ("EITHER", 7, True),
        ("FROM_ELSEWHERE", 1, True),
        ("NUMBER_299", 299, False),
        ("NUMBER_299", 300, True),
        ("BY_PLATFORM", 3, False),  # from here on it cannot be known
        ("COMPUTED", 3.0, False),
        ("LIST", 3, False),
        ("DELETED", 3, False),
        ("STATE", 3, False),
        ("NOT_ASSIGNED", 3, False),
    ]
    for name, value, is_replaced in rows:
        with row((name, value, is_replaced)):
            assert is_replaced_constant(library, name, value) is is_replaced


class Pretends(ModuleType):
    """What a library has put into `sys.modules` in its place."""

    __slots__ = ()


@pytest.mark.parametrize("module", [math, ModuleType("made_up"), sys, Pretends("pretends")])
def test_nothing_is_known_of_a_module_without_code(module: ModuleType) -> None:
    """Such as one in machine code."""
    assert not is_replaced_constant(module, "pi", 3)
