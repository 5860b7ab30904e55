"""Arrays and trees of this process: jax's where it is imported, else numpy's, else lazy ones."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from jaxd.interop.jax_runtime import loaded_jax, to_jax, to_jax_keys
from jaxd_protocol.pytree import Leaf
from jaxd_protocol.pytree.leaves import dtype_of

ArrayLibrary = Literal["jax", "numpy", "lazy"]


class PRNGKeys:
    """Typed PRNG keys in a process without jax: opaque, but a persistent function takes them.

    Attributes:
        impl: name of the PRNG implementation.
        data: the keys' numbers, uint32.
    """

    def __init__(self, impl: str, data: Any) -> None:
        self.impl = impl
        self.data = data

    def __repr__(self) -> str:
        return f"PRNGKeys(impl={self.impl!r}, data={self.data!r})"


def array_library() -> ArrayLibrary:
    """The array library of this process."""
    if loaded_jax() is not None:
        return "jax"
    return "numpy" if "numpy" in sys.modules else "lazy"


def native_array(leaf: Leaf, data: memoryview, kind: ArrayLibrary) -> Any:
    """An array, or PRNG keys, over bytes in C order that nobody else changes any more.

    Args:
        leaf: what it is.
        data: its bytes; one of numpy is writable when they are.
        kind: whose it is to be.

    Raises:
        ArgumentError: when it has a dtype that needs a package which is not installed.
    """
    if kind == "lazy":
        from jaxd.interop.lazy_array import LazyArray

        array: Any = LazyArray(leaf.dtype, leaf.shape, data)
        return PRNGKeys(leaf.impl, array) if leaf.tag == "K" else array
    import numpy

    array = numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), data)
    if kind == "jax":
        return to_jax_keys(array, leaf.impl) if leaf.tag == "K" else to_jax(array, leaf.weak)
    return PRNGKeys(leaf.impl, array) if leaf.tag == "K" else array


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
