"""Trees of the user's: jax's where jax is imported, else dicts, lists and tuples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jaxd.jax_side import loaded_jax

__all__ = ["leaves_of", "map_leaves"]


def map_leaves(do: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with what `do` returns in the place of each leaf."""
    jax = loaded_jax()
    return _mapped(do, tree) if jax is None else jax.tree.map(do, tree)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves, in order."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def _mapped(do: Callable[[Any], Any], tree: Any) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        made = {key: _mapped(do, value) for key, value in tree.items()}
        return OrderedDict(made) if isinstance(tree, OrderedDict) else made
    if isinstance(tree, list):
        return [_mapped(do, value) for value in tree]
    if isinstance(tree, tuple):
        children = [_mapped(do, value) for value in tree]
        return type(tree)._make(children) if hasattr(tree, "_make") else tuple(children)
    return do(tree)
