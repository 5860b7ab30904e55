"""Wrappers for values that pickle itself would write in another way."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.pickling.unpack import rebuild


class PickleBox:
    """Is pickled by a reduce tuple of its own; unpacked, it is the value again.

    Attributes:
        value: kept alive, so that its id stays its own while it is packed.
        reduce: gives the tuple.
    """

    __slots__ = ("reduce", "value")

    def __init__(self, value: Any, reduce: Callable[[], Any]) -> None:
        self.value = value
        self.reduce = reduce


def boxed_set(value: AbstractSet[Any]) -> PickleBox:
    """A set in an order that does not depend on the process's hash seed."""
    deep = len(value) <= _MAX_SORTED
    items = tuple(sorted(value, key=lambda item: (type(item).__qualname__, _sort_text(item, deep))))
    if type(value) is frozenset:
        return PickleBox(value, lambda: (frozenset, (items,)))
    return PickleBox(value, lambda: (set, (), items, None, None, rebuild.fill_set))


_MAX_SORTED: Final = 1000
"""In larger sets, objects that have no name are left in the order of their process."""

_REPR_TYPES: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _sort_text(item: Any, deep: bool) -> str:
    """What tells an element from others of its type in every process."""
    if type(item) in _REPR_TYPES:
        return repr(item)
    if type(item) is tuple:
        return str([_sort_text(each, deep) for each in item])
    if type(item) is frozenset:
        return str(sorted(_sort_text(each, deep) for each in item))
    name = getattr(item, "__qualname__", getattr(item, "_name_", None))
    if isinstance(name, str):
        return name
    return content_id(item).hex() if deep else ""


def boxed_dict(value: dict[Any, Any], keys: AbstractSet[Any]) -> PickleBox:
    """A dict of which only some keys are read."""
    part = [(key, item) for key, item in value.items() if key in keys]
    return PickleBox(value, lambda: (dict, (), None, None, iter(part)))


def boxed_cell(cell: Any) -> PickleBox:
    """A cell that the function which has it fills by itself."""
    return PickleBox(cell, lambda: (rebuild.make_cell, ()))
