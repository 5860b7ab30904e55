"""Reduce tuples of classes: by value, under an id that is their content.

A class is made empty and then completed, because its methods refer to it. No code of the class
statement (metaclass, decorators, `__init_subclass__`) runs again: its effects are in the class.
The members of an enum are made with the class, and completed afterwards.
"""

from __future__ import annotations

import abc
import enum
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.values.classes import (
    MEMBER_ATTRIBUTES,
    is_enum_content,
    is_made_in_python,
)
from jaxd_protocol.fingerprint.values.reflection import resolved_annotations, subclasses_of
from jaxd_protocol.fingerprint.values.registries import registered, virtual_subclasses
from jaxd_protocol.jax_objects.names import places_of
from jaxd_protocol.jax_objects.registrations import (
    build_class,
    class_registration,
    is_own_primitive,
    rules_of,
)
from jaxd_protocol.packages.bare_objects import own_constant_name
from jaxd_protocol.packages.importable import importable_name, name_within
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.pack.interface import Packer
from jaxd_protocol.pickling.unpack import rebuild

# `__parameters__`: what else the class has may lead to one that is derived from `cls[...]`.
_CREATION_NAMES: Final = frozenset(
    {"__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slots__"}
)
_NOT_SENT: Final = _CREATION_NAMES | {
    "__dict__",
    "__firstlineno__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}


def class_name(cls: type) -> tuple[str, str] | None:
    """Module and name by which the server finds a class; None for one that is sent by value."""
    module = cls.__module__
    if type(module) is str and is_local_module(module):  # a class from C may have any type there
        return None
    return importable_name(cls) or name_within("types", cls)


def is_pythons_own(cls: type) -> bool:
    """Whether pickle knows a class that has no name; one may only say that it is of `builtins`."""
    return cls.__module__ == "builtins" and not is_made_in_python(cls)


def reduce_class(packer: Packer, cls: type) -> Any:
    """A reduce tuple for a class by value."""
    names = packer.reach.part_of(cls)
    if names is not None:
        return _partial_class(packer, cls, names)
    name = tuple(packer.class_id(cls))
    if issubclass(cls, enum.Enum) and cls.__members__:
        made: tuple[Any, ...] = rebuild.make_enum, (name, *_enum_description(cls))
        return packer.nested(cls, made, rebuild.fill_enum, lambda: _enum_state(packer, cls))
    made = (
        rebuild.make_class,
        (name, type(cls), cls.__name__, cls.__bases__, _creation_attributes(cls)),
    )
    return packer.nested(cls, made, rebuild.fill_class, lambda: _state(packer, cls))


def reduce_primitive(packer: Packer, value: Any) -> Any:
    """A reduce tuple for a primitive of jax that is the user's own, with its rules.

    `NotImplemented` for any other object.

    Raises:
        PackingError: when no module has it: a library may have made it, whose code knows its own.
    """
    if not is_own_primitive(value):
        return NotImplemented
    if not places_of(value):
        raise PackingError(
            f"the primitive {value.name} is in no module: make it a global of the module that "
            "defines it, so that it can be known whose it is"
        )
    made = rebuild.make_primitive, (tuple(packer.class_id(value)), type(value))
    return packer.nested(
        value, made, rebuild.fill_primitive, lambda: (dict(vars(value)), rules_of(value))
    )


def reduce_constant(packer: Packer, value: Any) -> Any:
    """A reduce tuple for a constant of the user's, which is one object whatever leads to it.

    `NotImplemented` for any other object.
    """
    name = own_constant_name(value)
    if name is None:
        return NotImplemented
    made = rebuild.make_constant, (tuple(packer.class_id(value, name)), type(value))
    return packer.nested(value, made, rebuild.fill_constant, lambda: dict(vars(value)))


def _creation_attributes(cls: type) -> dict[str, Any]:
    """The attributes that have to be given when the class is made."""
    given = {name: vars(cls)[name] for name in sorted(_CREATION_NAMES) if name in vars(cls)}
    given["__qualname__"] = cls.__qualname__
    slots = given.get("__slots__")
    if slots is not None and not isinstance(slots, str):
        given["__slots__"] = tuple(slots)
    return given


def _state(packer: Packer, cls: type) -> dict[str, Any]:
    state: dict[str, Any] = {"attributes": _attributes(packer, cls)}
    registrations = registered(cls)
    if any(registrations):
        state["registered"] = tuple(registrations)
    if "subclasses" in packer.reach.readers:
        state["subclasses"] = tuple(subclasses_of(cls))
    if isinstance(cls, abc.ABCMeta):
        virtual = virtual_subclasses(cls)
        if virtual:
            state["virtual"] = sorted(virtual, key=lambda each: each.__qualname__)
    registration = class_registration(cls)
    if registration is not None:
        state["registration"] = registration
    return state


def _attributes(packer: Packer, cls: type) -> dict[str, Any]:
    resolved = resolved_annotations(cls, packer.reach.readers)
    found = {
        name: value
        for name, value in vars(cls).items()
        if name not in _NOT_SENT
        and not _is_slot_descriptor(cls, value)
        # a docstring that `dataclass` made of defaults without a name
        and not (name == "__doc__" and isinstance(value, str) and " at 0x" in value)
    }
    return found if resolved is None else found | {"__annotations__": resolved}


def _is_slot_descriptor(cls: type, value: Any) -> bool:
    """Whether an attribute comes with the class: the descriptors of its slots."""
    is_descriptor = isinstance(value, MemberDescriptorType | GetSetDescriptorType)
    return is_descriptor and value.__objclass__ is cls


def _partial_class(packer: Packer, cls: type, names: set[str]) -> Any:
    """A class of which only some attributes are read, those of its bases among them.

    Each function has its own.
    """
    local = [base for base in cls.__mro__ if is_local_module(base.__module__)]
    installed = [base for base in cls.__mro__ if base not in local]
    bases = [
        base
        for index, base in enumerate(installed)
        if not any(issubclass(earlier, base) for earlier in installed[:index])
    ]
    given: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    slots = [
        name
        for base in local
        for name, value in vars(base).items()
        if isinstance(value, MemberDescriptorType)
    ]
    if cls.__dictoffset__ == 0:
        given["__slots__"] = tuple(slots)
    defined = dict(ChainMap(*(dict(vars(base)) for base in local)))
    found = {name: defined[name] for name in sorted(names) if name in defined and name not in slots}
    made = build_class, (type(cls), cls.__name__, tuple(bases), given)
    return packer.nested(cls, made, rebuild.set_attributes, lambda: found)


_PLAIN_CONVERSIONS: Final[Mapping[type, Callable[[Any], Any]]] = {
    object: lambda _: None,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda member: str.__getitem__(member, slice(None)),
    bytes: lambda member: bytes.__getitem__(member, slice(None)),
    tuple: lambda member: tuple.__getitem__(member, slice(None)),
}
"""What a member of an enum with a data type is as that, whatever its class overrides."""


def _enum_description(cls: type[enum.Enum]) -> tuple[Any, ...]:
    """Metaclass, name, bases, members and boundary of an enum."""
    convert = _PLAIN_CONVERSIONS.get(rebuild.data_type_of(cls), lambda member: member._value_)
    members = {label: (convert(each), each._value_) for label, each in cls.__members__.items()}
    return type(cls), cls.__name__, cls.__bases__, members, getattr(cls, "_boundary_", None)


def _enum_state(packer: Packer, cls: type[enum.Enum]) -> dict[str, Any]:
    """That of a class, without its members, and the attributes of these."""
    state = _state(packer, cls)
    own = {name: each for name, each in state["attributes"].items() if is_enum_content(cls, name)}
    members = {
        label: {name: vars(each)[name] for name in vars(each) if name not in MEMBER_ATTRIBUTES}
        for label, each in cls.__members__.items()
    }
    return {**state, "attributes": own, "members": members}
