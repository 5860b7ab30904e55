"""Classes and enums, made again on the server: each once per content, see `table`."""

from __future__ import annotations

import abc
import copyreg
from collections.abc import Callable
from typing import Any

from jaxd_protocol.jax_objects import build_class, finish_class
from jaxd_protocol.pickling.unpack.content_table import ClassId, content_table


def make_class(
    name: tuple[bytes, str, str],
    metaclass: type,
    short_name: str,
    bases: tuple[type, ...],
    given: dict[str, Any],
) -> type:
    """The class of that id: the one that is here, or a new one without attributes."""
    return content_table.class_of(
        ClassId(*name), lambda: build_class(metaclass, short_name, bases, given)
    )


def make_partial_class(
    metaclass: type, short_name: str, bases: tuple[type, ...], given: dict[str, Any]
) -> type:
    """A class that will have only the attributes that are read; each function has its own."""
    return build_class(metaclass, short_name, bases, given)


def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Completes a class that was made in this unpacking; any other stays as it is."""
    content_table.fill_once(cls, lambda: _fill_class(cls, state))


def _fill_class(cls: type, state: dict[str, Any]) -> None:
    set_attributes(cls, state["attributes"])
    for other in state.get("virtual", ()):
        abc.ABCMeta.register(cls, other)  # type: ignore[arg-type]
    if "reduced_by" in state:
        copyreg.pickle(cls, state["reduced_by"])
    finish_class(cls, state.get("registration"))


def set_attributes(cls: type, attributes: dict[str, Any]) -> None:
    """Sets them without asking the metaclass, which may have rules for users."""
    setter: Callable[[type, str, Any], None] = type.__setattr__
    for name, value in attributes.items():
        setter(cls, name, value)


def make_enum(
    name: tuple[bytes, str, str],
    metaclass: type,
    short_name: str,
    bases: tuple[type, ...],
    members: dict[str, Any],
    boundary: Any,
) -> type:
    """The enum of that id: the one that is here, or a new one with only its members."""
    identity = ClassId(*name)

    def make() -> type:
        meta: Any = next(base for base in metaclass.__mro__ if base.__module__ == "enum")
        content = meta.__prepare__(short_name, bases)
        content["__module__"] = identity.module
        content["__qualname__"] = identity.qualname
        for label, value in members.items():
            content[label] = value
        more = {} if boundary is None else {"boundary": boundary}
        made: type = meta.__new__(metaclass, short_name, bases, content, **more)
        return made

    return content_table.class_of(identity, make)


def fill_enum(cls: Any, state: dict[str, Any]) -> None:
    """Completes an enum that was made in this unpacking; any other stays as it is."""
    content_table.fill_once(cls, lambda: _fill_enum(cls, state))


def _fill_enum(cls: Any, state: dict[str, Any]) -> None:
    set_attributes(cls, state["attributes"])
    for label, attributes in state["members"].items():
        member = cls._member_map_[label]
        if member._value_ != attributes["_value_"]:
            _change_value(cls, member, attributes["_value_"])
        vars(member).update(attributes)


def _change_value(cls: Any, member: Any, value: Any) -> None:
    """For an enum whose `__new__` gives its members another value than they are made from."""
    known = cls._value2member_map_
    for old, found in list(known.items()):
        if found is member:
            del known[old]
    known[value] = member
