"""Enums, taken apart: their members are made with the class, and completed afterwards."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["description", "state"]

_OF_THE_METACLASS: Final = frozenset(
    {
        "__new__",
        "__new_member__",
        "_all_bits_",
        "_boundary_",
        "_flag_mask_",
        "_generate_next_value_",
        "_hashable_values_",
        "_inverted_",
        "_member_map_",
        "_member_names_",
        "_member_type_",
        "_new_member_",
        "_singles_mask_",
        "_unhashable_values_",
        "_unhashable_values_map_",
        "_use_args_",
        "_value2member_map_",
        "_value_repr_",
    }
)
"""Attributes that `enum` computes again from the members."""

_OF_A_MEMBER: Final = frozenset({"__objclass__", "_name_", "_sort_order_", "_value_"})

_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda member: str.__getitem__(member, slice(None)),
    bytes: lambda member: bytes.__getitem__(member, slice(None)),
}
"""How to get at what a member is besides being a member, whatever its class says."""


def description(cls: type[enum.Enum]) -> tuple[Any, ...]:
    """Metaclass, name, bases, members and boundary: what an enum is made of."""
    members = {label: _plain(cls, member) for label, member in cls.__members__.items()}
    return type(cls), cls.__name__, cls.__bases__, members, getattr(cls, "_boundary_", None)


def _plain(cls: Any, member: Any) -> Any:
    convert = _PLAIN.get(cls._member_type_)
    return member._value_ if convert is None else convert(member)


def state(cls: type[enum.Enum], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an enum that are not its members, and those of its members."""
    members = cls.__members__
    kept = {
        name: value
        for name, value in attributes.items()
        if name not in _OF_THE_METACLASS and name not in members
    }
    return {"attributes": kept, "members": {label: _own(each) for label, each in members.items()}}


def _own(member: enum.Enum) -> dict[str, Any]:
    attributes = {name: each for name, each in vars(member).items() if name not in _OF_A_MEMBER}
    return {"_value_": member._value_, **attributes}
