"""Classes: the user's own by all that is in them, installed ones by name."""

from __future__ import annotations

import abc
import re
import sys
from collections.abc import Collection
from enum import Enum, EnumMeta
from functools import partial
from types import FunctionType, MemberDescriptorType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import Steps
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import CyclicClasses, EmitContent, Walk
from jaxd_protocol.packages.importable import importable_name

_IGNORED_ATTRIBUTES: Final = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__module__",
        "__qualname__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__classdictcell__",
        "__orig_bases__",
        "__parameters__",
        "__slotnames__",
    ]
)

_ENUM_MACHINERY: Final = frozenset(
    [
        "_member_map_",
        "_value2member_map_",
        "_member_names_",
        "_unhashable_values_",
        "_unhashable_values_map_",
        "_hashable_values_",
        "_use_args_",
        "_member_type_",
        "_value_repr_",
        "_boundary_",
        "_flag_mask_",
        "_singles_mask_",
        "_all_bits_",
        "_inverted_",
        "__new__",
    ]
)
"""Attributes that `enum` makes of the members and the boundary."""

_FROM_PYDANTIC_SCHEMA: Final = frozenset({"__pydantic_serializer__", "__pydantic_validator__"})
"""Made from the schema of the class, which counts."""

_PYDANTIC_MEMORY: Final = frozenset(
    {"__pydantic_parent_namespace__", "__pydantic_setattr_handlers__"}
)
"""Where pydantic looks types up, and which attributes have been assigned."""

_REFERENCES: Final = frozenset({"ref", "schema_ref"})
_ADDRESS: Final = re.compile(r":(\d{6,})")

_ENUM_HOOKS: Final = frozenset({"_generate_next_value_", "_new_member_", "__new_member__"})
"""Attributes in which `enum` keeps a function of the class, or one of its own."""

MEMBER_ATTRIBUTES: Final = frozenset({"__objclass__", "_name_", "_sort_order_", "_value_"})

_HEAP_TYPE: Final = 1 << 9
"""CPython's flag of a class that was not compiled into a library."""


def emit_class(walk: Walk, cls: type) -> None:
    """Appends a class."""
    name = None if walk.is_local(cls.__module__) else importable_name(cls)
    if name is None and not is_made_in_python(cls):
        name = str(type.__getattribute__(cls, "__module__")), cls.__qualname__
    if name is None:  # also one that a library has made, which only has the library's module name
        emit_by_content(walk, cls, _emit_content, cls.__qualname__)
        return
    walk.refuse_patched(cls)
    refuse_own_node(walk, cls)
    walk.reach.installed.append(cls)
    modules.emit_reference(walk, *name)


def refuse_own_node(walk: Walk, cls: type) -> None:
    """Refuses an installed class that the user has registered as a node of jax's trees.

    Raises:
        PackingError: when it is one: on a server it would be one for all clients.
    """
    if "jax" not in sys.modules:
        walk.guards.answer(_has_jax, False)
        return
    from jaxd_protocol.fingerprint.values import registries  # many functions reach no class

    walk.guards.registered(cls, registries.stamp, registries.is_own_node)
    if registries.is_own_node(cls):
        raise PackingError(
            f"{walk.path()} uses {cls.__module__}.{cls.__qualname__}, which was registered with "
            "jax by code of your own. On a server that would hold for all clients. Register a "
            "subclass of your own and use that."
        )


def refuse_subclasses(walk: Walk, value: Any, steps: Steps) -> None:
    """For code that asks an installed class for its subclasses.

    Raises:
        PackingError: a server's has those of all its clients, and of what it has imported.
    """
    if steps and steps[0] == ("a", "__subclasses__") and isinstance(value, type):
        modules.refuse_state(walk, f"which classes were derived from {value.__name__}", "Python")


def _has_jax() -> bool:
    return "jax" in sys.modules


def emit_by_content(walk: Walk, value: Any, body: EmitContent, name: str) -> None:
    """Appends what is one object on a server whatever refers to it, by the digest of its content.

    Args:
        walk: the walk.
        value: a class, or a primitive of jax.
        body: appends its content.
        name: what it is called.
    """
    walk.reach.whole.add(id(value))
    if id(value) in walk.classes_inside:
        walk.numbered(value, body, name)
        return
    if id(value) in walk.open_classes:
        raise CyclicClasses(value)
    try:
        found = walk.walk_class(value, name)
    except CyclicClasses as cycle:
        if id(cycle.cls) not in walk.classes_inside:
            raise
        walk.classes_inside[id(value)] = value, name
        walk.numbered(value, body, name)
        return
    walk.tag("class")
    walk.write(found.fingerprint.digest)
    walk.meet(value, found)


def is_made_in_python(cls: type) -> bool:
    """Whether a class statement or a call has made a class, wherever it says that it is from."""
    return bool(cls.__flags__ & _HEAP_TYPE) and type(vars(cls).get("__module__")) is str


def _emit_content(walk: Walk, cls: type) -> None:
    from jaxd_protocol.fingerprint.values import registries  # many functions reach no class
    from jaxd_protocol.jax_objects import registrations

    walk.tag("class")
    walk.reach.classes.append(cls)
    walk.text(cls.__name__)
    walk.guards.attribute(cls, "__bases__", cls.__bases__)
    walk.guards.attribute(cls, "__name__", cls.__name__)
    walk.guards.instance(cls)
    walk.guards.mapping(vars(cls))
    candidates = vars(cls).keys() - registrations.GENERATED_ATTRIBUTES - _IGNORED_ATTRIBUTES
    names = sorted(name for name in candidates if _is_content(cls, name))
    summary = " ".join([cls.__name__, *(base.__name__ for base in cls.__bases__), *names])
    walk.part("class", f"class {cls.__qualname__}", summary.encode())
    walk.emit_labelled("", type(cls))
    walk.text(len(cls.__bases__))
    for base in cls.__bases__:
        walk.emit_labelled("", base)
    _annotations(walk, cls)
    for name in names:
        walk.text(name)
        _attribute(walk, name, f"attribute {cls.__name__}.{name}", vars(cls)[name])
    if issubclass(cls, Enum):
        _members(walk, cls)
    if isinstance(cls, abc.ABCMeta):
        _virtual_subclasses(walk, registries.virtual_subclasses(cls))
    registration = registrations.class_registration(cls)
    if registration is not None:
        walk.tag("pytree")
        walk.emit_labelled("", registration)
    registries.emit_registered(walk, cls)


def _attribute(walk: Walk, name: str, label: str, value: Any) -> None:
    before, walk.label = walk.label, label
    if not (name.startswith("__") and _emit_generated(walk, name, value)):
        walk.emit(value)
    walk.label = before


def _virtual_subclasses(walk: Walk, found: Collection[type]) -> None:
    """Those that were registered with an abstract class: `isinstance` knows them."""
    walk.guards.answer(abc.get_cache_token, abc.get_cache_token())  # changes with each one
    walk.unordered(frozenset(found))


def _is_content(cls: type, name: str) -> bool:
    if isinstance(cls, EnumMeta):
        return is_enum_content(cls, name)
    if _repeats_or_remembers(cls, name):
        return False
    slots = vars(cls).get("__slots__", ())
    return name not in ((slots,) if isinstance(slots, str) else tuple(slots))


def is_enum_content(cls: EnumMeta, name: str) -> bool:
    """Whether an attribute of an enum is neither a member nor made of the members."""
    if name in _ENUM_HOOKS:
        return _is_made_outside_of_enum(vars(cls)[name])
    return name not in _ENUM_MACHINERY and name not in cls.__members__


def _is_made_outside_of_enum(hook: Any) -> bool:
    function = getattr(hook, "__func__", hook)
    return isinstance(function, FunctionType) and function.__globals__["__name__"] != "enum"


def _annotations(walk: Walk, cls: type) -> None:
    """Names and their order: the types are not read, or by a decorator that kept them."""
    from jaxd_protocol.fingerprint.values import reflection  # as above

    names = reflection.annotated_names(cls)
    kept = vars(cls).get("__annotations__")
    if type(kept) is dict:
        walk.guards.answer(partial(tuple, kept), names)
    walk.text(len(names))
    for name in names:
        walk.text(name)


def _members(walk: Walk, cls: type[Enum]) -> None:
    walk.text(len(cls.__members__))
    walk.emit_labelled(f"boundary of {cls.__name__}", getattr(cls, "_boundary_", None))
    for name, member in cls.__members__.items():
        walk.text(name)
        walk.emit_labelled(f"attribute {cls.__name__}.{name}", member._value_)
        walk.guards.mapping(vars(member))
        for each in sorted(vars(member).keys() - MEMBER_ATTRIBUTES):
            walk.text(each)
            walk.emit_labelled(f"attribute {cls.__name__}.{name}.{each}", vars(member)[each])


def slot_names(cls: type) -> list[str]:
    """The slots of a class and its bases."""
    return [
        name
        for base in cls.__mro__
        if base is not object
        for name, content in vars(base).items()
        if type(content) is MemberDescriptorType and "__slots__" in vars(base)
    ]


# What libraries put into the classes of the user says the same in each process and has other bytes
# in each: addresses, and hashes of texts.


def _repeats_or_remembers(cls: type, name: str) -> bool:
    """Whether an attribute of a class of the user's only repeats or remembers something."""
    if name in _PYDANTIC_MEMORY:
        return True
    return name in _FROM_PYDANTIC_SCHEMA and type(_schema_of(cls)) is dict


def _schema_of(cls: type) -> Any:
    return vars(cls).get("__pydantic_core_schema__")


def _emit_generated(walk: Walk, name: str, value: Any) -> bool:
    """Appends an attribute that a library has made; False for any other."""
    if name == "__pydantic_core_schema__" and type(value) is dict:
        walk.emit(_without_addresses(value, {}))
    elif name == "__hash__" and _is_made_by_attrs(value):
        walk.tag("attrs hash")  # it begins with the hash of a text
    else:
        return False
    return True


def _is_made_by_attrs(value: Any) -> bool:
    is_function = isinstance(value, FunctionType)
    return is_function and value.__code__.co_filename.startswith("<attrs generated ")


def _without_addresses(schema: Any, known: dict[str, int]) -> Any:
    """A copy of a schema in which the addresses of classes are numbered as they are met."""
    if type(schema) is list or type(schema) is tuple:
        return type(schema)([_without_addresses(each, known) for each in schema])
    if type(schema) is not dict:
        return schema
    is_node = "type" in schema
    return {
        name: _ADDRESS.sub(lambda found: f":{known.setdefault(found[1], len(known))}", each)
        if is_node and name in _REFERENCES and type(each) is str
        else _without_addresses(each, known)
        for name, each in schema.items()
    }


def emit_field(walk: Walk, value: Any) -> None:
    """Appends a field of a dataclass, or of a class that attrs has made, without its annotation."""
    walk.tag("field")
    for name in sorted(name for name in type(value).__slots__ if name != "type"):
        content = getattr(value, name, None)
        walk.text(name)
        walk.emit_child(
            f".{name}", getattr(content, "name", None) if name == "_field_type" else content
        )
