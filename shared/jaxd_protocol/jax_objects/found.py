"""Names of jax objects that do not know their own: primitives, caches, universal functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxd_protocol.importable import importable_name, name_within
from jaxd_protocol.installed import is_local_module

__all__ = ["found_name"]


def found_name(value: Any) -> tuple[str, str] | None:
    """Module and name of a jax object in an installed package; None when it has none.

    First by what it says of itself, then among all that the packages hold which it may be from.
    """
    said = importable_name(value)
    if said is not None or is_local_module(getattr(value, "__module__", None)):
        return said
    for package in dict.fromkeys(_packages(value)):
        found = name_within(package, value)
        if found is not None:
            return found
    return None


def _packages(value: Any) -> Iterator[str]:
    yield "jax"
    for holder in (value, *getattr(value, "__dict__", {}).values()):
        module = getattr(holder, "__module__", None)
        if isinstance(module, str) and not is_local_module(module):
            yield module.partition(".")[0]
