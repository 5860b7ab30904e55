"""Basic indexing: indices that select a rectangular part of an array."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def basic_index(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...] | None:
    """An index as a tuple of ints, slices of ints, None and Ellipsis.

    None when it is anything else, or does not fit the shape: the array itself then says what it
    means.
    """
    try:
        items = tuple(map(_plain_item, index if isinstance(index, tuple) else (index,)))
    except TypeError:
        return None
    axes = [item for item in items if item is not None]
    gaps = axes.count(...)
    missing = len(shape) - len(axes) + gaps
    if gaps > 1 or missing < 0:
        return None
    if gaps:
        at = axes.index(...)
        axes[at : at + 1] = [slice(None)] * missing
    return items if all(map(_fits, axes, shape)) else None


def _plain_item(item: Any) -> Any:
    """The item in Python's own ints; raises TypeError when it is no basic one."""
    if item is None or item is ...:
        return item
    if isinstance(item, slice):
        return slice(*(None if x is None else _int(x) for x in (item.start, item.stop, item.step)))
    return _int(item)


def _int(item: Any) -> int:
    if type(item) is bool or not isinstance(item, Integral):  # True picks by a mask
        raise TypeError
    return int(item)


def _fits(item: Any, length: int) -> bool:
    if isinstance(item, slice):
        return bool(item.step != 0)
    return -length <= int(item) < length
