"""What packed bytes call on the server to make functions, classes and containers again."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from jaxd_protocol.pickling.code_objects import CodeLocation, find_code
from jaxd_protocol.pickling.unpack.private_modules import PrivateModules

Filler = Callable[[Any, Any], None]


class ThreadLocal(threading.local):
    """What a client's `threading.local` held in the thread that called, in every thread here."""

    def __init__(self, content: dict[str, Any]) -> None:
        vars(self).update(content)


def make_context_variable(name: str, value: Any) -> ContextVar[Any]:
    """One that has this value in every context."""
    return ContextVar(name, default=value)


def make_module(
    blob: PrivateModules, name: str, package: str | None, kind: str, importable: bool
) -> ModuleType:
    """An empty local module; `kind` is `module`, `package` or `namespace`."""
    known = blob.modules.get(name) if importable else None
    if known is not None:
        return known
    module = blob.make_module(name, package, kind != "module")
    if importable:
        blob.modules[name] = module
        if kind == "namespace":
            blob.namespaces.add(name)
    return module


def fill_module(module: ModuleType, content: dict[str, Any]) -> None:
    """Puts what was read of a module into it."""
    vars(module).update(content)


def namespace_of(module: ModuleType) -> dict[str, Any]:
    """The globals of a module's functions."""
    return vars(module)


def make_code(*arguments: Any) -> CodeType:
    """A code object."""
    return CodeType(*arguments)


def make_cell() -> CellType:
    """A cell of a closure, empty."""
    return CellType()


def same(value: Any) -> Any:
    """The value."""
    return value


def fill_cell(cell: CellType, content: tuple[Any]) -> None:
    """Puts the content into a cell that was met outside of a function."""
    cell.cell_contents = content[0]


def make_function(
    code: CodeType, namespace: dict[str, Any], name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A local function, without what it refers to."""
    return FunctionType(code, namespace, name, None, cells)


def make_function_in(
    module: str, code: CodeType, name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function of code that an installed module made at run time."""
    return FunctionType(code, vars(importlib.import_module(module)), name, None, cells)


def make_library_function(
    place: CodeLocation, name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function of code that this process's own library has."""
    return FunctionType(find_code(place), vars(sys.modules[place[0]]), name, None, cells)


def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Puts globals, closure, defaults and attributes into a function."""
    function.__globals__.update(state.get("globals", ()))
    for cell, content in zip(function.__closure__ or (), state.get("closure", ()), strict=True):
        if content:
            cell.cell_contents = content[0]
    vars(function).update(state.get("attributes", ()))
    for name, value in state.get("more", {}).items():
        setattr(function, name, value)


def fill(value: Any, filling: tuple[Filler, Any, bool]) -> None:
    """Completes a function or class; the last item is of no use here."""
    filler, state, _ = filling
    filler(value, state)


def fill_later(value: Any, filler: Filler, state: Any) -> None:
    """Completes what was made first and completed after all that it is nested in."""
    filler(value, state)


def class_attribute(cls: type, name: str) -> Any:
    """What stands in a class, such as the descriptor of a slot."""
    return vars(cls)[name]


def make_cached(wrapped: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """A function under `functools.lru_cache`, with nothing in its cache."""
    return functools.lru_cache(maxsize, typed)(wrapped)


def make_instance(cls: type) -> Any:
    """An object without attributes."""
    return cls() if cls is SimpleNamespace else object.__new__(cls)


def fill_instance(value: Any, attributes: dict[str, Any]) -> None:
    """Those attributes of an object that are read; also of a frozen one."""
    own = getattr(value, "__dict__", None)
    for name, attribute in attributes.items():
        if own is not None and not is_slot(type(value), name):
            own[name] = attribute
        else:
            object.__setattr__(value, name, attribute)


def is_slot(cls: type, name: str) -> bool:
    """Whether a class keeps an attribute of its instances itself."""
    return any(name in vars(base) and hasattr(vars(base)[name], "__set__") for base in cls.__mro__)


def fill_set(value: set[Any], items: Iterable[Any]) -> None:
    """Puts the items into a set."""
    value.update(items)


def make_view(kind: str, items: Iterable[Any]) -> Any:
    """The `keys`, `values` or `items` of a dict."""
    if kind == "items":
        return dict(items).items()
    if kind == "keys":
        return dict.fromkeys(items).keys()
    return dict(enumerate(items)).values()


def make_reference(blob: PrivateModules, value: Any) -> Any:
    """A weak reference to an object that lives as long as the function."""
    blob.kept.append(value)
    return weakref.ref(value)


def dead_reference() -> Any:
    """A weak reference to nothing."""
    return weakref.ref(set())


def standard_stream(name: str) -> Any:
    """`sys.stdout` or `sys.stderr` of this process."""
    return getattr(sys, name)


def make_event(is_set: bool) -> threading.Event:
    """An event."""
    event = threading.Event()
    if is_set:
        event.set()
    return event


def make_type_variable(
    kind: Any, positional: tuple[Any, ...], keywords: dict[str, Any], module: str
) -> Any:
    """A type variable of the user's own."""
    variable = kind(*positional, **keywords)
    variable.__module__ = module
    return variable
