"""Reduce functions for types that pickle refuses or restores differently."""

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

from jaxd_protocol.fingerprint.values.instances import ThreadLocal
from jaxd_protocol.fingerprint.values.reductions import make_memory, set_on_cached
from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.pickling.unpack import rebuild


def _recreate(make: Callable[[], Any]) -> Callable[[Any], Any]:
    """The server has a new one: its content belongs to the process."""
    return lambda value: (make, ())


def _descriptor(value: Any) -> Any:
    return rebuild.class_attribute, (value.__objclass__, value.__name__)


def _context_variable(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return rebuild.make_context_variable, (variable.name, variable.get())
    except LookupError:
        return contextvars.ContextVar, (variable.name,)


def _cached(value: Any) -> Any:
    name = importable_name(value)
    if name is not None:
        return find_object, name
    settings = value.cache_parameters()
    made = (value.__wrapped__, settings["maxsize"], settings["typed"])
    return rebuild.make_cached, made, (set_on_cached(value) or None)


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
    threading.Event: lambda value: (rebuild.make_event, (value.is_set(),)),
    threading.local: lambda value: (ThreadLocal, (vars(value),)),
    ThreadLocal: lambda value: (ThreadLocal, (vars(value),)),
    weakref.WeakKeyDictionary: _recreate(weakref.WeakKeyDictionary),
    weakref.WeakValueDictionary: _recreate(weakref.WeakValueDictionary),
    weakref.WeakSet: _recreate(weakref.WeakSet),
    contextvars.ContextVar: _context_variable,
    logging.Logger: lambda value: (logging.getLogger, (value.name,)),
    logging.RootLogger: lambda value: (logging.getLogger, ()),
    property: lambda value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
    staticmethod: lambda value: (staticmethod, (value.__func__,)),
    classmethod: lambda value: (classmethod, (value.__func__,)),
    types.MethodType: lambda value: (types.MethodType, (value.__func__, value.__self__)),
    types.MappingProxyType: lambda value: (types.MappingProxyType, (dict(value),)),
    types.GetSetDescriptorType: _descriptor,
    types.MemberDescriptorType: _descriptor,
    memoryview: lambda value: (make_memory, (value.tobytes(), value.format, value.shape)),
    type({}.keys()): _view("keys"),
    type({}.values()): _view("values"),
    type({}.items()): _view("items"),
    type(functools.lru_cache(lambda: 0)): _cached,
    typing.TypeVar: _type_variable,
    typing.ParamSpec: _type_variable,
}


def reduce_per_process(value: Any) -> Any:
    """What is another one in each process; `NotImplemented` for any other object.

    The standard streams are those of the server, and a test that runs has no outcome there.
    """
    if (type(value).__module__, type(value).__qualname__) == ("unittest.case", "_Outcome"):
        return type(value), ()
    for name in ("stdout", "stderr"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            return rebuild.standard_stream, (name,)
    return NotImplemented
