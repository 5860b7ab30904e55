"""Reduce tuples of functions."""

from __future__ import annotations

import sys
from types import CellType, FunctionType
from typing import Any, Final

from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.functions import is_registration_count
from jaxd_protocol.fingerprint.values.modules import IGNORED_ATTRIBUTES
from jaxd_protocol.fingerprint.values.reflection import names_in_annotations, raw_annotations
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.code_objects import locate_code
from jaxd_protocol.pickling.pack.interface import Packer
from jaxd_protocol.pickling.unpack import pytest_asserts, rebuild

_NOT_SENT: Final = IGNORED_ATTRIBUTES - {"__doc__", "__file__"}
"""Globals that the module gets on the server, or that nothing reads there."""

_PYTEST_PREFIX: Final = "@pytest_ar"


def is_local_function(function: FunctionType) -> bool:
    """Whether the globals of a function are of the user's own code; its `__module__` may differ."""
    return is_local_module(function.__globals__.get("__name__"))


def reduce_function(packer: Packer, function: FunctionType) -> Any:
    """A reduce tuple: a local function by value, an installed one by name."""
    if is_local_function(function):
        made: tuple[Any, ...] = (
            rebuild.make_function,
            (
                function.__code__,
                packer.namespace(function.__globals__),
                function.__name__,
                _cells(packer, function),
            ),
        )
        return packer.nested(
            function,
            made,
            rebuild.fill_function,
            lambda: _state(packer, function, _globals(packer, function)),
        )
    name = importable_name(function)
    if name is not None:
        return packer.by_name(function, name)
    made = _library_function(packer, function)
    return packer.nested(
        function, made, rebuild.fill_function, lambda: _state(packer, function, {})
    )


def _library_function(packer: Packer, function: FunctionType) -> tuple[Any, ...]:
    """A function that a library made, such as `optax.sgd(0.1).update`: by the server's own code."""
    module = str(function.__globals__["__name__"])
    cells = _cells(packer, function)
    place = locate_code(module, function.__code__)
    if place is not None:
        return rebuild.make_library_function, (place, function.__name__, cells)
    return rebuild.make_function_in, (module, function.__code__, function.__name__, cells)


def _cells(packer: Packer, function: FunctionType) -> tuple[Any, ...] | None:
    closure = function.__closure__
    return None if closure is None else tuple(packer.cell(cell) for cell in closure)


def _globals(packer: Packer, function: FunctionType) -> dict[str, Any]:
    """The globals that the code names; none for a module that an archive brings."""
    namespace = function.__globals__
    module = sys.modules.get(str(namespace.get("__name__")))
    is_own = module is not None and vars(module) is namespace
    archives = packer.reach.archives
    if is_own and archives is not None and archives.name_of(module) is not None:
        return {}
    names = facts_of(function.__code__).names - _NOT_SENT
    if "hints" in packer.reach.readers:
        names |= {*names_in_annotations(function)} - _NOT_SENT
    found = {name: namespace[name] for name in sorted(names) if name in namespace}
    if _PYTEST_PREFIX in found:
        found[_PYTEST_PREFIX] = pytest_asserts
    return found


def _state(packer: Packer, function: FunctionType, found: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if found:
        state["globals"] = found
    if function.__closure__:
        names = function.__code__.co_freevars
        state["closure"] = tuple(
            _cell_content(function, name, cell)
            for name, cell in zip(names, function.__closure__, strict=True)
        )
    if vars(function):
        state["attributes"] = dict(vars(function))
    more = _extra_attributes(function) | _read_attributes(packer, function)
    if more:
        state["more"] = more
    return state


def _cell_content(function: FunctionType, name: str, cell: CellType) -> tuple[Any, ...]:
    try:
        content = cell.cell_contents
    except ValueError:
        return ()
    if content is not None and is_registration_count(function, name):
        return (0,)  # that of no process: what it has found is looked up anew
    return (content,)


def _extra_attributes(function: FunctionType) -> dict[str, Any]:
    """The attributes that a new function with the same code does not have.

    Annotations are not among them: they do not affect a call, and may refer to anything.
    """
    usual = {
        "__defaults__": None,
        "__kwdefaults__": None,
        "__qualname__": function.__code__.co_qualname,
        "__module__": function.__globals__.get("__name__"),
    }
    found = {name: getattr(function, name) for name in usual}
    return {name: value for name, value in found.items() if value != usual[name]}


def _read_attributes(packer: Packer, function: FunctionType) -> dict[str, Any]:
    """Docstring and annotations, where the code that is packed reads such."""
    found: dict[str, Any] = {}
    if not is_local_function(function):
        return found
    if "docstrings" in packer.reach.readers:
        found["__doc__"] = function.__doc__
    if not {"annotations", "hints"}.isdisjoint(packer.reach.readers):
        found["__annotations__"] = dict(raw_annotations(function))
    return found
