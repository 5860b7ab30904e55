"""Nodes of trees, made by what this process has registered with jax for their class.

Mappings whose keys are no plain values, or that make values by themselves, need no jax. For the
rest: `PyTreeDef.from_node_data_and_children`, which jax does not document.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Final

from jaxd.jax_side import loaded_jax
from jaxd_protocol.errors import ResultError

__all__ = ["MAPPINGS", "is_registered", "structure", "unflatten"]


def is_registered(cls: type) -> bool:
    """Whether instances of a class can be made: by itself, or because jax is imported."""
    if cls in MAPPINGS:
        return True
    try:
        return loaded_jax() is not None and _structure(cls, None, 0) is not None
    except (RuntimeError, ValueError):  # which of them depends on the version
        return False


def unflatten(cls: type, aux: Any, children: list[Any]) -> Any:
    """An instance, made as `jax.jit` makes those that it returns.

    Raises:
        ResultError: when the class does not take these.
    """
    try:
        if cls in MAPPINGS:
            return MAPPINGS[cls](aux, children)
        _check_fields(cls, aux, children)
        return _structure(cls, aux, len(children)).unflatten(children)
    except Exception as error:
        raise ResultError(
            f"the result holds a {cls.__module__}.{cls.__qualname__}, which cannot be made here: "
            f"{error}. Return dicts, lists and tuples from the function."
        ) from error


def _check_fields(cls: type, aux: Any, children: list[Any]) -> None:
    """Raises unless a dataclass has as many fields: jaxlib reads on behind too few children."""
    if "__dataclass_fields__" not in dir(cls):
        return
    from jaxd_protocol.jax_objects.registrations import class_registration

    found = class_registration(cls)
    if found is not None and found.style == "dataclass":
        data, static = found.parts
        if type(aux) is not tuple or (len(children), len(aux)) != (len(data), len(static)):
            raise ValueError(f"it has {len(data)} children and {len(static)} static fields")


def structure(tree: Any) -> Any:
    """The structure of a tree.

    Raises:
        ResultError: when jax is not imported, or cannot take the tree apart.
    """
    jax = loaded_jax()
    if jax is None:
        raise ResultError(
            "the result holds the structure of a tree, which only jax can make: import jax here, "
            "or return dicts, lists and tuples from the function."
        )
    try:
        return jax.tree.structure(tree)
    except Exception as error:
        raise ResultError(
            f"the result holds the structure of a tree, which cannot be made here: {error}. "
            "Return dicts, lists and tuples from the function."
        ) from error


def _structure(cls: type, aux: Any, count: int) -> Any:
    tools = loaded_jax().tree_util
    leaf = tools.tree_structure(0)
    make = tools.PyTreeDef.from_node_data_and_children
    return make(tools.default_registry, (cls, aux), [leaf] * count)


def _default_dict(aux: Any, children: list[Any]) -> Any:
    factory, keys = aux
    return defaultdict(factory, zip(keys, children, strict=True))


MAPPINGS: Final[dict[type, Callable[[Any, list[Any]], Any]]] = {
    dict: lambda keys, children: dict(zip(keys, children, strict=True)),
    OrderedDict: lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
    defaultdict: _default_dict,
}
"""Classes whose instances are keys and values, for which jax is not needed."""
