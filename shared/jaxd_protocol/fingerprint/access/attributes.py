"""Objects by what is read of them: `cfg.lr`, and `self` by what its methods read."""

from __future__ import annotations

from functools import cached_property
from types import FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.model import NO_CALLBACKS, Steps
from jaxd_protocol.fingerprint.unpatched import globals_module
from jaxd_protocol.fingerprint.values import classes
from jaxd_protocol.fingerprint.walk import Walk

Followed = tuple[Any, Steps]


def uses_of_first_parameter(walk: Walk, function: Any) -> dict[Steps, int] | None:
    """What a function of the user's reads of its first argument; None when it may read all."""
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return None
    if not walk.is_local(globals_module(function)):
        return None
    code = function.__code__
    return facts_of(code).uses.get(code.co_varnames[0])


def record_method(walk: Walk, function: Any, instance: Any) -> None:
    """Notes what a function of the user's gives of its first argument to be called back."""
    if isinstance(function, FunctionType) and walk.is_local(globals_module(function)):
        gives = facts_of(function.__code__).callbacks_passed
        if gives is not NO_CALLBACKS and function.__code__.co_argcount and not walk.is_inner:
            walk.reach.targets.add_method(function, gives, instance)


def emit_callable_object(walk: Walk, instance: Any) -> bool:
    """Appends an object that is going to be called, by what its `__call__` reads of it.

    False, and nothing is appended, when that cannot be said.
    """
    if uses_of_first_parameter(walk, _static_lookup(type(instance), "__call__")[1]) is None:
        return False
    taken = follow_attribute(walk, instance, "a", "__call__", ())
    if taken is None:
        return False
    walk.tag("called")
    return True


def _static_lookup(cls: type, name: str) -> tuple[type | None, Any]:
    """Where a class finds an attribute, without running anything."""
    for base in cls.__mro__:
        if name in vars(base):
            return base, vars(base)[name]
    return None, MISSING


def _is_readable(value: Any) -> bool:
    """Whether reading an attribute of an object only looks into its `__dict__` and class."""
    cls = type(value)
    if issubclass(cls, type | dict | list | tuple | ModuleType):
        return False
    if _static_lookup(cls, "__getattribute__")[0] not in (object, SimpleNamespace):
        return False
    return hasattr(value, "__dict__") or bool(classes.slot_names(cls))


def follow_attribute(walk: Walk, value: Any, kind: str, name: str, rest: Steps) -> Followed | None:
    """One step from an object; None when the object counts whole."""
    cls = type(value)
    if kind not in "aw" or not _is_readable(value):
        return None
    if name != "__call__" and name.startswith("__") and name.endswith("__"):
        return None  # `__dict__`, `__class__`: the interpreter's own
    base, on_class = _static_lookup(cls, name)
    if kind == "w":
        plain = _static_lookup(cls, "__setattr__")[0] is object and not hasattr(
            type(on_class), "__set__"
        )
        return _begin_partial_read(walk, value) if plain else None
    attributes = getattr(value, "__dict__", {})
    if type(on_class) is MemberDescriptorType:
        return _slot_attribute(walk, value, name, rest)
    if base is not None and (name not in attributes or hasattr(type(on_class), "__set__")):
        return (
            _class_attribute(walk, value, base, name, rest)
            if walk.is_local(cls.__module__)
            else None
        )
    if name not in attributes:
        return None
    _begin_partial_read(walk, value)
    walk.reach.partial_read_of(value).names.add(name)
    walk.guards.item(attributes, name, attributes[name])
    walk.label += f".{name}"
    return attributes[name], rest


def _begin_partial_read(walk: Walk, value: Any) -> Followed:
    """The object, and its class, are read in part."""
    walk.tag("of")
    walk.guards.instance(value)
    attributes = getattr(value, "__dict__", MISSING)
    if attributes is not MISSING:
        walk.guards.attribute(value, "__dict__", attributes)
    walk.reach.partial_read_of(value)
    walk.reach.partial_read_of(type(value))
    return MISSING, ()


def _slot_attribute(walk: Walk, value: Any, name: str, rest: Steps) -> Followed:
    _begin_partial_read(walk, value)
    content = getattr(value, name, MISSING)
    walk.guards.attribute(value, name, content)
    if content is MISSING:
        walk.tag("missing")
        return MISSING, ()
    walk.reach.partial_read_of(value).names.add(name)
    walk.label += f".{name}"
    return content, rest


def _class_attribute(walk: Walk, value: Any, base: type, name: str, rest: Steps) -> Followed | None:
    """An attribute that the class has: a method or property reads the object in turn."""
    found = vars(base)[name]
    function = _attribute_function(found)
    if function is None and hasattr(type(found), "__get__") and type(found) is not staticmethod:
        return None
    uses = None if function is None else uses_of_first_parameter(walk, function)
    if function is not None and (uses is None or (rest and function is found)):
        return None
    _begin_partial_read(walk, value)
    cls = type(value)
    walk.reach.partial_read_of(cls).names.add(name)
    walk.guards.answer(lambda: _static_lookup(cls, name)[1] is found, True)
    if not hasattr(type(found), "__set__"):
        walk.guards.item(getattr(value, "__dict__", {}), name)
    if function is None:
        walk.label += f".{name}"
        return found, (rest if type(found) is not staticmethod else ())
    label = walk.label
    record_method(walk, function, value)
    walk.emit(found)
    if uses is not None and (id(value), id(function)) not in walk.read_by:
        walk.read_by.add((id(value), id(function)))
        walk.emit_uses(label, value, uses)
    return MISSING, ()


def _attribute_function(found: Any) -> Any:
    """The function that runs when an attribute of a class is read or called, if one does."""
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return found.func
    return found if isinstance(found, FunctionType) else None
