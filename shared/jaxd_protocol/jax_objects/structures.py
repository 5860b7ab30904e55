"""Structures of trees: their nodes, how one is made of these again, and what leads to a leaf.

Private to jax: `jax._src.tree_util._registry`, and the state that a `PyTreeDef` is pickled by, a
registry and a list of nodes, each behind its children: kind, children, aux data, class, leaves
below and nodes up to here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.jax_objects.names import attribute


def is_registered(cls: type) -> bool:
    """Whether a class is registered with jax in this process, by itself or with all of jax's."""
    registry = attribute("jax._src.tree_util", "_registry")
    return registry is not None and cls in registry


def structure_nodes(structure: Any) -> Any:
    """Nodes as tuples of class, aux data and children; None for a leaf."""
    node = structure.node_data()
    return None if node is None else (*node, tuple(map(structure_nodes, structure.children())))


def make_structure(node: Any) -> Any:
    """The structure of these nodes; runs where one arrives, and imports jax.

    Raises:
        ArgumentError: when a class among them is not registered with jax here.
    """
    import jax

    if node is None:
        return jax.tree.structure(0)
    cls, aux, children = node
    below = [make_structure(child) for child in children]
    if hasattr(cls, "_fields") and issubclass(cls, tuple) and is_registered(cls):
        return _of_registered_tuple(cls, aux, below)
    make = jax.tree_util.PyTreeDef.from_node_data_and_children
    try:
        return make(jax.tree_util.default_registry, (cls, aux), below)
    except (RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"an argument holds a {cls.__module__}.{cls.__qualname__}, which is registered with "
            "jax on the client and not on the server. Register it in the module that defines it."
        ) from error


def _of_registered_tuple(cls: type, aux: Any, below: list[Any]) -> Any:
    """A node that `from_node_data_and_children` takes for a plain named tuple."""
    import jax

    nodes = [node for child in below for node in child.__getstate__()[1]]
    leaves = sum(child.num_leaves for child in below)
    node = (_kind_of_registered(), len(below), aux, cls, leaves, len(nodes) + 1)
    made = jax.tree_util.PyTreeDef.__new__(jax.tree_util.PyTreeDef)
    made.__setstate__((jax.tree_util.default_registry, [*nodes, node]))
    return made


@functools.cache
def _kind_of_registered() -> Any:
    import jax

    one: Any = jax.tree.structure(jax.tree_util.Partial(len))
    return one.__getstate__()[1][-1][0]


def path_names(path: Iterable[Any]) -> tuple[str, ...]:
    """Keys, numbers and names of attributes on a path as `tree_flatten_with_path` gives it."""
    return tuple(
        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
    )


def nested(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Dictionaries in dictionaries, with each leaf under its names, of which it has one or more."""
    tree: dict[str, Any] = {}
    for (*above, last), leaf in leaves:
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = leaf
    return tree
