"""Lists, tuples, dicts and sets."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from jaxd_protocol.fingerprint.walk import Walk, short_repr


def emit_list(walk: Walk, value: list[Any]) -> None:
    """Appends a list: it can be changed, so it has an identity."""
    walk.reach.whole.add(id(value))
    walk.numbered(value, _list)


def _list(walk: Walk, value: list[Any]) -> None:
    walk.guards.sequence(value)
    _items(walk, value)


def emit_tuple(walk: Walk, value: tuple[Any, ...]) -> None:
    """Appends a tuple: equal ones are the same."""
    walk.nested(value, _items)


def _items(walk: Walk, value: list[Any] | tuple[Any, ...]) -> None:
    walk.tag(type(value).__name__)
    walk.text(len(value))
    for index, item in enumerate(value):
        walk.emit_child(f"[{index}]", item)


def emit_dict(walk: Walk, value: dict[Any, Any]) -> None:
    """Appends a dict, in its order."""
    walk.reach.whole.add(id(value))
    walk.numbered(value, _dict)


def _dict(walk: Walk, value: dict[Any, Any]) -> None:
    walk.tag("dict")
    walk.text(len(value))
    walk.guards.mapping(value)
    for key, item in list(value.items()):
        walk.emit_labelled("", key)
        walk.emit_child(f"[{short_repr(key)}]", item)


def emit_set(walk: Walk, value: AbstractSet[Any]) -> None:
    """Appends a set or frozenset."""
    if type(value) is frozenset:
        walk.nested(value, _set)
    else:
        walk.numbered(value, _set)


def _set(walk: Walk, value: Any) -> None:
    walk.tag(type(value).__name__)
    if type(value) is set:
        walk.guards.elements(value)
    walk.unordered(value)
