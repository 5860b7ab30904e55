"""Tuples of Python's own with named fields: `sys.version_info`, `time.struct_time` and the like.

They count by the field that is read. The types of some cannot be called, not even to unpickle one,
and such a tuple has the client's values on a server.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any

from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.packages.importable import importable_name


class StructSequence(tuple[Any, ...]):  # noqa: SLOT001  it has as many fields as the other
    """One of another process, where this one cannot make one of its type."""

    jaxd_type: tuple[str, str]


def is_struct_sequence(value: Any) -> bool:
    """Whether it is such a tuple."""
    return isinstance(value, tuple) and (
        hasattr(type(value), "n_sequence_fields") or type(value) is StructSequence
    )


def type_name(value: Any) -> tuple[str, str]:
    """Module and name of its type."""
    if type(value) is StructSequence:
        return value.jaxd_type
    return type(value).__module__, type(value).__qualname__


def fields_of(value: Any) -> dict[str, Any]:
    """All of its fields by name, also those that are no items of the tuple."""
    if type(value) is StructSequence:
        return {name: each for name, each in vars(value).items() if name != "jaxd_type"}
    names = vars(type(value)).items()
    return {name: getattr(value, name) for name, of in names if type(of) is MemberDescriptorType}


def part_of(value: Any, kind: str, name: Any) -> Any:
    """What a step leads to, an attribute or an item; `MISSING` when that cannot be told."""
    if kind == "a":
        return fields_of(value).get(name, MISSING)
    is_item = kind == "i" and type(name) is int and -len(value) <= name < len(value)
    return value[name] if is_item else MISSING


def emit_struct_sequence(walk: Walk, value: Any) -> None:
    """Appends one that counts whole."""
    walk.tag("struct sequence")
    for name in type_name(value):
        walk.text(name)
    walk.text(len(value))
    for index, item in enumerate(value):
        walk.emit_child(f"[{index}]", item)
    for name, item in fields_of(value).items():
        walk.text(name)
        walk.emit_child(f".{name}", item)


def reduce_struct_sequence(value: Any) -> Any:
    """A reduce tuple for one whose type has no name; `NotImplemented` for any other object."""
    if not is_struct_sequence(value) or importable_name(type(value)) is not None:
        return NotImplemented
    return make_struct_sequence, (*type_name(value), tuple(value), fields_of(value))


def make_struct_sequence(
    module: str, name: str, items: tuple[Any, ...], fields: Mapping[str, Any]
) -> Any:
    """This process's own, where it has the same fields, else one with these."""
    own = getattr(sys.modules.get(module), name, None)
    if own is not None and type_name(own) == (module, name) and fields_of(own) == fields:
        return own
    made = StructSequence(items)
    vars(made).update(fields, jaxd_type=(module, name))
    return made
