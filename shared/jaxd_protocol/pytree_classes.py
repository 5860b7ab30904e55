"""Classes that a user registered with jax as pytree nodes: the registration travels with them.

A class of the user's own travels by value, and on the server it is a new class: jax there has to
be told again how to take its instances apart. Private to jax: `jax._src.tree_util._registry` and
the fields `to_iter` and `from_iter` of its entries; tests/shared/test_pytree_classes.py notices
when they move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Registration", "register_again", "registration_of"]

Registration = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
"""How to take an instance apart, and how to put one together."""


def registration_of(cls: type) -> Registration | None:
    """How `cls` was registered in this process; None when it was not, or jax is not loaded."""
    registry = getattr(sys.modules.get("jax._src.tree_util"), "_registry", {})
    entry = registry.get(cls)
    return None if entry is None else (entry.to_iter, entry.from_iter)


def register_again(cls: type, registration: Registration) -> None:
    """Registers a class that arrived; once, because jax knows no way back."""
    import jax

    if registration_of(cls) is None:
        jax.tree_util.register_pytree_node(cls, *registration)
