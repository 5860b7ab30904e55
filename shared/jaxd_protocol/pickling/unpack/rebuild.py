"""Functions that packed bytes call on the server to rebuild functions, classes and containers."""

from __future__ import annotations

import abc
import copyreg
import importlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NoReturn
from weakref import WeakSet

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.values.reductions import own_attributes
from jaxd_protocol.jax_objects.registrations import (
    Place,
    build_class,
    finish_class,
    finish_primitive,
)
from jaxd_protocol.packages.bare_objects import keep_constant
from jaxd_protocol.pickling.code_objects import CodeLocation, find_code
from jaxd_protocol.pickling.unpack.content_table import ClassId, content_table
from jaxd_protocol.pickling.unpack.private_modules import PrivateModules

Filler = Callable[[Any, Any], None]
"""Completes an object, the first argument, with its state."""


def make_context_variable(name: str, value: Any) -> ContextVar[Any]:
    """A context variable that has this value in every context."""
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
    """Sets the attributes of a module that are read, in this order."""
    for name, value in content.items():
        vars(module).pop(name, None)  # what a function of it has brought
        vars(module)[name] = value


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
    """Fills a cell that is reached otherwise than by its function."""
    cell.cell_contents = content[0]


def make_function(
    code: CodeType, namespace: dict[str, Any], name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A local function, not completed yet."""
    return FunctionType(code, namespace, name, None, cells)


def make_function_in(
    module: str, code: CodeType, name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function whose code an installed module made at run time."""
    return FunctionType(code, vars(importlib.import_module(module)), name, None, cells)


def make_library_function(
    place: CodeLocation, name: str, cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function with the code of this process's own library."""
    return FunctionType(find_code(place), vars(sys.modules[place[0]]), name, None, cells)


def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Sets globals, closure, defaults and attributes of a function."""
    function.__globals__.update(state.get("globals", ()))
    for cell, content in zip(function.__closure__ or (), state.get("closure", ()), strict=True):
        if content:
            cell.cell_contents = content[0]
    vars(function).update(state.get("attributes", ()))
    for name, value in state.get("more", {}).items():
        setattr(function, name, value)


def fill(value: Any, filling: tuple[Filler, Any, bool]) -> None:
    """Completes a function or class; only the pickler uses the last item."""
    filler, state, _ = filling
    filler(value, state)


def fill_later(value: Any, filler: Filler, state: Any) -> None:
    """Completes a function or class that is nested too deeply for `fill`."""
    filler(value, state)


def make_instance(cls: type) -> Any:
    """An object without attributes."""
    if inspect.isabstract(cls):  # its client has one: the missing methods were not sent
        cls.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return cls() if cls is SimpleNamespace else object.__new__(cls)


def fill_instance(value: Any, attributes: dict[str, Any]) -> None:
    """Sets the attributes of an object that are read; also of a frozen one."""
    own = own_attributes(value)
    for name, attribute in attributes.items():
        if own is not None and not is_slot(type(value), name):
            own[name] = attribute
        else:
            object.__setattr__(value, name, attribute)


def make_mapping(cls: Any) -> Any:
    """An instance of a subclass of dict without items; its `__init__` does not run."""
    return cls.__new__(cls)


def fill_mapping(value: Any, state: tuple[dict[Any, Any], dict[str, Any], list[str], bool]) -> None:
    """Sets what is read: items, attributes, names of both; the attributes may be the items."""
    items, attributes, both, is_own = state
    put = OrderedDict.__setitem__ if isinstance(value, OrderedDict) else dict.__setitem__
    for key, item in items.items():
        put(value, key, item)
    if is_own:
        object.__setattr__(value, "__dict__", value)
    elif attributes or both:
        value.__dict__.update(attributes, **{name: items[name] for name in both})


def fill_config(node: Any, state: dict[str, Any]) -> None:
    """Sets the content of a node of omegaconf, and makes it the one around those in it."""
    node.__setstate__(state)
    if hasattr(node, "_re_parent"):
        node._re_parent()


def is_slot(cls: type, name: str) -> bool:
    """Whether a class or a base has a data descriptor for an attribute of its instances."""
    return any(name in vars(base) and hasattr(vars(base)[name], "__set__") for base in cls.__mro__)


def fill_set(value: set[Any], items: Iterable[Any]) -> None:
    """Puts the items into a set."""
    value.update(items)


def make_class(
    name: tuple[bytes, str, str],
    metaclass: type,
    short_name: str,
    bases: tuple[type, ...],
    given: dict[str, Any],
) -> type:
    """The known class of that id, or a new one without attributes."""
    return content_table.class_of(
        ClassId(*name), lambda: build_class(metaclass, short_name, bases, given)
    )


def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Completes a class that was made in this unpacking; any other stays as it is."""
    content_table.fill_once(cls, lambda: _fill_class(cls, state))


def _fill_class(cls: type, state: dict[str, Any]) -> None:
    # Registered first: what is a subclass already, by a method that it has or by a
    # `__subclasshook__`, is not registered at all.
    for other in state.get("virtual", ()):
        abc.ABCMeta.register(cls, other)  # type: ignore[arg-type]
    _register(cls, *state.get("registered", ()))
    set_attributes(cls, state["attributes"])
    finish_class(cls, state.get("registration"))


def _register(
    cls: type,
    abstract: Iterable[type] = (),
    forms: Iterable[tuple[Any, Any]] = (),
    reducers: Iterable[Any] = (),
    entries: Iterable[tuple[Any, Any]] = (),
) -> None:
    """Registers a class as `values.registries` found it at the client."""
    for each in abstract:
        abc.ABCMeta.register(each, cls)  # type: ignore[arg-type]
    for dispatcher, form in forms:
        dispatcher.register(cls, form)
    for reducer in reducers:
        copyreg.pickle(cls, reducer)
    for table, entry in entries:
        if isinstance(table, WeakSet):
            table.add(cls)
        else:
            table[cls] = entry


def make_primitive(name: tuple[bytes, str, str], kind: type) -> Any:
    """The known primitive of jax of that id, or a new one without rules."""
    return content_table.class_of(ClassId(*name), lambda: object.__new__(kind))


def fill_primitive(primitive: Any, state: tuple[dict[str, Any], dict[Place, Any]]) -> None:
    """Completes a primitive that was made in this unpacking; any other stays as it is."""
    content_table.fill_once(primitive, lambda: finish_primitive(primitive, *state))


def make_constant(name: tuple[bytes, str, str], kind: type) -> Any:
    """The known constant of that id, or a new one without attributes."""
    _, called, module = name
    return content_table.class_of(
        ClassId(*name), lambda: keep_constant(make_instance(kind), module, called)
    )


def fill_constant(constant: Any, attributes: dict[str, Any]) -> None:
    """Completes a constant that was made in this unpacking; any other stays as it is."""
    content_table.fill_once(constant, lambda: vars(constant).update(attributes))


def set_attributes(cls: type, attributes: dict[str, Any]) -> None:
    """Sets attributes of a class without `__setattr__` of its metaclass, in this order.

    What the class's own code has set meanwhile, as a `__new__` that keeps the only instance, goes.
    """
    setter: Callable[[type, str, Any], None] = type.__setattr__
    for name in [name for name in attributes if name in vars(cls) and not name.startswith("__")]:
        type.__delattr__(cls, name)
    for name, value in attributes.items():
        setter(cls, name, value)


def make_enum(
    name: tuple[bytes, str, str],
    metaclass: type,
    short_name: str,
    bases: tuple[type, ...],
    members: dict[str, tuple[Any, Any]],
    boundary: Any,
) -> type:
    """The known enum of that id, or a new one with only its members.

    Each has what it is as an object of the data type, and its value. No code of the user's that
    makes members runs again.
    """
    identity = ClassId(*name)

    def make() -> type:
        meta: Any = next(base for base in metaclass.__mro__ if base.__module__ == "enum")
        content = meta.__prepare__(short_name, bases)
        own: dict[str, Any] = {"__module__": identity.module, "__qualname__": identity.qualname}
        own |= {"__new__": _make_member, "__init__": _leave}
        for label, value in {**own, **members}.items():
            content[label] = value
        more = {} if boundary is None else {"boundary": boundary}
        made: Any = meta.__new__(metaclass, short_name, bases, content, **more)
        for each in ("__init__", "__new_member__"):
            type.__delattr__(made, each)
        type.__setattr__(made, "_new_member_", made._member_type_.__new__)
        return made  # type: ignore[no-any-return]

    return content_table.class_of(identity, make)


def _make_member(cls: Any, *pair: Any) -> Any:
    data, value = pair if len(pair) == 2 else pair[0]
    kind: Any = data_type_of(cls)
    member = kind.__new__(cls) if kind is object else kind.__new__(cls, data)
    member._value_ = value
    return member


def _leave(*_: Any) -> None:
    """Members get their attributes later."""


def data_type_of(cls: Any) -> type:
    """The type of Python's own that members of an enum are derived from."""
    bases = getattr(cls, "_member_type_", object).__mro__
    return next(
        base for base in bases if isinstance(vars(base).get("__new__"), BuiltinFunctionType)
    )


def fill_enum(cls: Any, state: dict[str, Any]) -> None:
    """As `fill_class`, with the attributes of the members."""
    content_table.fill_once(cls, lambda: _fill_enum(cls, state))


def _fill_enum(cls: Any, state: dict[str, Any]) -> None:
    _fill_class(cls, state)
    for label, attributes in state["members"].items():
        vars(cls._member_map_[label]).update(attributes)


class Placeholder:
    """Raises `PackingError` at any use."""

    __slots__ = ("_jaxd_message",)

    def __init__(self, message: str) -> None:
        object.__setattr__(self, "_jaxd_message", message)

    def __getattr__(self, name: str) -> NoReturn:
        # hasattr() and copy probe for names like __array__
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _refuse(self)


def _refuse(self: Placeholder, *_: Any, **__: Any) -> NoReturn:
    raise PackingError(object.__getattribute__(self, "_jaxd_message"))


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OPERATIONS = (
    *("call", "iter", "next", "await", "enter", "exit", "setattr", "delattr"),
    *("len", "getitem", "setitem", "delitem", "contains"),
    *("bool", "int", "float", "index", "array", "jax_array"),
    *("lt", "le", "gt", "ge", "neg", "pos", "abs"),
    *_BINARY,
    *(f"r{name}" for name in _BINARY),
)
for _name in _OPERATIONS:
    setattr(Placeholder, f"__{_name}__", _refuse)


def make_placeholder(path: str, type_name: str, reason: str) -> Placeholder:
    """Stands for an object that was reached by `path`."""
    return Placeholder(
        f"{path} is a {type_name}, which cannot travel to the server: {reason}. Make it inside the "
        "function, or pass what it yields as an argument."
    )
