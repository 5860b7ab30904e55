"""Which function takes apart which kind of object.

What is neither code nor a plain container: objects of jax, arrays, instances of any class.

Imported when a walk meets the first of them: many functions reach none.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.fingerprint import functions
from jaxd_protocol.fingerprint.access import attributes, follow
from jaxd_protocol.fingerprint.archives import members
from jaxd_protocol.fingerprint.canonical import constant
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper, FunctionWrapper
from jaxd_protocol.fingerprint.values import classes, containers, modules
from jaxd_protocol.fingerprint.values.arrays import emit_array
from jaxd_protocol.fingerprint.values.instances import emit_instance
from jaxd_protocol.fingerprint.values.jax_values import emit_jax
from jaxd_protocol.fingerprint.walk import Handlers, Walk

Emit = Callable[[Walk, Any], None]


def _emit_root(walk: Walk, value: Any) -> None:
    """Appends what a walk starts from; of an instance only what its `__call__` reads."""
    value = _unbound_wrapper(value)
    if members.emit_archived(walk, value):
        return
    if type(value) not in _EMITTERS and not isinstance(value, type):
        walk.label = f"self {type(value).__name__}"
        if attributes.emit_callable_object(walk, value):
            return
        walk.label = f"self {type(value).__name__}"
    walk.emit(value)


def _emit_object(walk: Walk, value: Any) -> None:
    """Appends anything that is not an atom."""
    if walk.listed is not None and walk.is_listed(value):
        walk.callback_only(value)
        return
    value = _unbound_wrapper(value)
    emit = _EMITTERS.get(type(value))
    if isinstance(value, FunctionWrapper):
        _function_wrapper(walk, value)
    elif walk.archives is not None and members.emit_archived(walk, value):
        return
    elif emit is not None:
        emit(walk, value)
    elif isinstance(value, type):
        classes.emit_class(walk, value)
    elif isinstance(value, types.ModuleType):
        modules.emit_module(walk, value)
    else:
        emit_other(walk, value)


def _unbound_wrapper(value: Any) -> Any:
    """The value; a persistent function on an instance as any method."""
    if isinstance(value, BoundWrapper):
        return types.MethodType(value.__func__, value.__self__)
    return value


def _function_wrapper(walk: Walk, value: FunctionWrapper) -> None:
    """The function, and how it is jitted where it is called; one of an archive is plain there."""
    if value.jit_options is None or members.is_named(walk, value.__wrapped__):
        walk.emit(value.__wrapped__)
    else:
        walk.numbered(value, _jitted)


def _jitted(walk: Walk, value: FunctionWrapper) -> None:
    walk.tag("jitted")
    walk.emit(value.__wrapped__)
    walk.emit_child(" (options)", repr(value.jit_options))


def _code(walk: Walk, value: types.CodeType) -> None:
    walk.write(constant(value, functions.code_digest))


def _slice(walk: Walk, value: slice) -> None:
    walk.tag("slice")
    for item in (value.start, value.stop, value.step):
        walk.emit(item)


def _property(walk: Walk, value: property) -> None:
    walk.tag("property")
    walk.guards.instance(value)
    for item in (value.fget, value.fset, value.fdel):
        walk.emit_labelled("", item)


def _wrapper(walk: Walk, value: Any) -> None:
    """A `staticmethod` or `classmethod`."""
    walk.tag(type(value).__name__)
    walk.emit(value.__func__)


def _cached_property(walk: Walk, value: functools.cached_property[Any]) -> None:
    walk.tag("cached_property")
    walk.emit(value.func)


def _lru_cache(walk: Walk, value: Any) -> None:
    walk.tag("lru_cache")  # what it has cached follows from the function
    walk.emit(value.__wrapped__)


def _descriptor(walk: Walk, value: Any) -> None:
    """Something that the interpreter made for a class: a slot, a method written in C."""
    walk.tag("descriptor")
    walk.text(value.__objclass__.__name__)
    walk.text(value.__name__)


def _cell(walk: Walk, value: types.CellType) -> None:
    walk.tag("cell")
    walk.guards.cell(value)
    try:
        walk.emit(value.cell_contents)
    except ValueError:
        walk.tag("empty")


def _weak_reference(walk: Walk, value: weakref.ref[Any]) -> None:
    walk.tag("weakref")
    walk.emit(value())


def _proxy(walk: Walk, value: types.MappingProxyType[Any, Any]) -> None:
    walk.tag("mappingproxy")
    walk.guards.mapping(value)
    walk.emit(dict(value))


_DESCRIPTORS: Final = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)

_EMITTERS: Final[dict[type, Emit]] = {
    list: containers.emit_list,
    tuple: containers.emit_tuple,
    dict: containers.emit_dict,
    set: containers.emit_set,
    frozenset: containers.emit_set,
    types.FunctionType: functions.emit_function,
    types.MethodType: functions.emit_method,
    types.BuiltinFunctionType: functions.emit_builtin,
    types.ModuleType: modules.emit_module,
    types.CodeType: _code,
    types.CellType: _cell,
    types.MappingProxyType: _proxy,
    functools.partial: functions.emit_partial,
    functools.cached_property: _cached_property,
    type(functools.lru_cache(len)): _lru_cache,
    property: _property,
    staticmethod: _wrapper,
    classmethod: _wrapper,
    slice: _slice,
    weakref.ref: _weak_reference,
    **dict.fromkeys(_DESCRIPTORS, _descriptor),
}

HANDLERS: Final = Handlers(_emit_root, _emit_object, follow.follow, members.emit_archive)
"""What a walk is constructed with."""


def emit_other(walk: Walk, value: Any) -> None:
    """Appends an object by what it is made of."""
    if not (emit_jax(walk, value) or emit_array(walk, value)):
        emit_instance(walk, value)
