"""Numbers that are instances of somebody's own class, as the numbers that they are."""

from __future__ import annotations

from typing import Any

__all__ = ["plain_number"]


def plain_number(value: Any) -> Any:
    """The number that an instance of a subclass of `int`, `float` or `complex` is, else None.

    jax traces them, members of an `IntEnum` among them, as the numbers that they are.
    """
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return complex.__complex__(value) if isinstance(value, complex) else None
