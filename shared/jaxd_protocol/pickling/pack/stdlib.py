"""Objects that pickle refuses or would not make alike: each type with its reduce function."""

from __future__ import annotations

import contextvars
import functools
import logging
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.pickling.unpack import rebuild


def _recreate(make: Callable[[], Any]) -> Callable[[Any], Any]:
    """What it holds is a matter of the process: the server's is new."""
    return lambda value: (make, ())


def _event(event: threading.Event) -> Any:
    return rebuild.make_event, (event.is_set(),)


def _context_variable(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return rebuild.make_context_variable, (variable.name, variable.get())
    except LookupError:
        return contextvars.ContextVar, (variable.name,)


def _thread_local(value: threading.local) -> Any:
    return rebuild.ThreadLocal, (vars(value),)


def _logger(logger: logging.Logger) -> Any:
    return logging.getLogger, (logger.name,)


def _root_logger(_: logging.Logger) -> Any:
    return logging.getLogger, ()


def _property(value: property) -> Any:
    return type(value), (value.fget, value.fset, value.fdel, value.__doc__)


def _static_or_class_method(value: Any) -> Any:
    return type(value), (value.__func__,)


def _method(method: types.MethodType) -> Any:
    return types.MethodType, (method.__func__, method.__self__)


def _cached(value: Any) -> Any:
    name = importable_name(value)
    if name is not None:
        return find_object, name
    settings = value.cache_parameters()
    made = (value.__wrapped__, settings["maxsize"], settings["typed"])
    more = {name: each for name, each in vars(value).items() if name not in _CACHE_ATTRIBUTES}
    return rebuild.make_cached, made, (more or None)


_CACHE_ATTRIBUTES: Final = frozenset(
    {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters", "__annotate__"}
)


def _mapping_proxy(value: types.MappingProxyType[Any, Any]) -> Any:
    return types.MappingProxyType, (dict(value),)


def _memory_view(value: memoryview) -> Any:
    return memoryview, (value.tobytes(),)


def _descriptor(value: Any) -> Any:
    return rebuild.class_attribute, (value.__objclass__, value.__name__)


def _view(kind: str) -> Callable[[Any], Any]:
    return lambda value: (rebuild.make_view, (kind, list(value)))


def _type_variable(value: Any) -> Any:
    name = importable_name(value)
    if name is not None:
        return find_object, name
    flags = {"covariant": value.__covariant__, "contravariant": value.__contravariant__}
    if getattr(value, "__infer_variance__", False):
        flags = {"infer_variance": True}
    bound = value.__bound__
    constraints = getattr(value, "__constraints__", ())
    return rebuild.make_type_variable, (
        type(value),
        (value.__name__, *constraints),
        flags if bound is None else {**flags, "bound": bound},
        value.__module__,
    )


DISPATCH: Final[dict[type, Callable[[Any], Any]]] = {
    type(threading.Lock()): _recreate(threading.Lock),
    type(threading.RLock()): _recreate(threading.RLock),
    threading.Condition: _recreate(threading.Condition),
    threading.Event: _event,
    threading.local: _thread_local,
    rebuild.ThreadLocal: _thread_local,
    weakref.WeakKeyDictionary: _recreate(weakref.WeakKeyDictionary),
    weakref.WeakValueDictionary: _recreate(weakref.WeakValueDictionary),
    weakref.WeakSet: _recreate(weakref.WeakSet),
    contextvars.ContextVar: _context_variable,
    logging.Logger: _logger,
    logging.RootLogger: _root_logger,
    property: _property,
    staticmethod: _static_or_class_method,
    classmethod: _static_or_class_method,
    types.MethodType: _method,
    types.MappingProxyType: _mapping_proxy,
    types.GetSetDescriptorType: _descriptor,
    types.MemberDescriptorType: _descriptor,
    memoryview: _memory_view,
    type({}.keys()): _view("keys"),
    type({}.values()): _view("values"),
    type({}.items()): _view("items"),
    type(functools.lru_cache(lambda: 0)): _cached,
    typing.TypeVar: _type_variable,
    typing.ParamSpec: _type_variable,
}


def reduce_stream(value: Any) -> Any:
    """The standard streams of one process are those of the other."""
    if value is sys.stdout or value is sys.__stdout__:
        return rebuild.standard_stream, ("stdout",)
    if value is sys.stderr or value is sys.__stderr__:
        return rebuild.standard_stream, ("stderr",)
    return NotImplemented
