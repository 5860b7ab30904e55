"""Whether an installed module's attribute still has the value that the module gave it.

Tests and notebooks patch installed packages (``optax.sgd = mine``). There is no record of what a
module was when it was imported, so this says yes only where a value shows where it comes from.
Where it says no, the value itself counts and travels along: harmless when it was the module's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from jaxd_protocol.fingerprint.tokens import ATOMS
from jaxd_protocol.importable import importable_name

__all__ = ["is_plain_data", "is_pristine", "layers"]

_CONSTANTS: Final = {
    "pi": math.pi,
    "e": math.e,
    "tau": math.tau,
    "inf": math.inf,
    "euler_gamma": 0.5772156649015329,
    "newaxis": None,
    "nan": math.nan,
}

_LARGE: Final = 1000
"""Items of a container of plain data that is still looked at."""


def is_pristine(module: ModuleType, name: str, value: Any, is_local: Callable[[str], bool]) -> bool:
    """Whether `value`, found as `name` in an installed module, certainly belongs there.

    Args:
        module: the installed module.
        name: of the attribute.
        value: what is there now.
        is_local: whether a module is the user's own.
    """
    if type(value) in ATOMS:
        return _is_known_constant(name, value)
    if isinstance(value, ModuleType):
        return True
    if is_plain_data(value) or _is_array(value):
        return False
    if isinstance(value, functools.partial | tuple):
        return False  # made at some time, by somebody
    for layer in layers(value):
        if isinstance(layer, FunctionType) and is_local(layer.__globals__.get("__name__") or ""):
            return False
    own = getattr(value, "__name__", None)
    home = getattr(value, "__module__", None)
    if isinstance(own, str) and isinstance(home, str):
        same = own.rpartition(".")[2] == name and importable_name(value) is not None
        return same and home.partition(".")[0].lstrip("_") == _top(module)
    # an object: of a class of the module's own package, or somebody has put it there
    return str(type(value).__module__).partition(".")[0].lstrip("_") in (_top(module), "builtins")


def _top(module: ModuleType) -> str:
    return module.__name__.partition(".")[0].lstrip("_")


def _is_known_constant(name: str, value: Any) -> bool:
    if name.startswith("__"):
        return True
    if name not in _CONSTANTS:
        return False
    expected = _CONSTANTS[name]
    return value is expected or value == expected or (name == "nan" and str(value) == "nan")


def is_plain_data(value: Any) -> bool:
    """Whether a container holds nothing but plain values, and not too many."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if kind in (list, tuple, set, frozenset):
        return len(value) <= _LARGE and all(map(is_plain_data, value))
    if kind is dict:
        if len(value) > _LARGE:
            return False
        return all(map(is_plain_data, value)) and all(map(is_plain_data, value.values()))
    return False


def _is_array(value: Any) -> bool:
    names = {base.__name__ for base in type(value).__mro__}
    return bool(names & {"ndarray", "ArrayImpl"})


def layers(value: Any) -> Iterator[Any]:
    """The value, and the functions below decorators such as `jax.jit`."""
    for _ in range(20):
        yield value
        value = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)
        if value is None:
            return
