"""Classes that are registered as nodes of trees: how, and how to register them again.

Private to jax: `jax._src.tree_util._registry` with the fields `to_iter` and `from_iter` of its
entries, and the names of the functions that jax's own ways of registering put there.
"""

from __future__ import annotations

import abc
import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakSet

from jaxd_protocol.jax_objects.libraries import (
    library_registration,
    register_serialization,
    register_with_library,
    state_dict_of,
)
from jaxd_protocol.jax_objects.names import attribute

GENERATED_ATTRIBUTES = frozenset(
    {
        "__abstractclassvars__",  # equinox: from annotations, whose types are no content
        "__abstractvars__",
        "__dataclass_params__",  # its effects are in the methods
        "__signature__",  # flax sets it where documents are built
    }
)
"""Attributes of a class that follow from the rest, for whoever hashes a class."""


class Registration(NamedTuple):
    """How a class was registered, in parts that can be hashed and packed.

    Attributes:
        style: `node`, `keyed`, `dataclass` or `static`, as jax calls its ways; `equinox` or
            `flax.nnx` where the library does it; `none` when only flax's serialisation knows it.
        parts: the functions or field names that go with the style.
        state_dict: the functions with which flax saves and restores instances, if it does.
    """

    style: str
    parts: tuple[Any, ...] = ()
    state_dict: tuple[Any, Any] | None = None


_finished: WeakSet[type] = WeakSet()


def class_registration(cls: type) -> Registration | None:
    """How the class is registered in this process; None when it is not at all.

    For a class that was registered with `register_pytree_with_keys` and a `flatten_func` of its
    own, jax does not tell the function with keys; such a class arrives without its key names.
    """
    registry = attribute("jax._src.tree_util", "_registry")
    if registry is None:
        return None
    style = library_registration(cls)
    if style is None and cls in registry:
        entry = registry[cls]
        style = _style(cls, entry.to_iter, entry.from_iter)
    state_dict = state_dict_of(cls)
    if style is None and state_dict is None:
        return None
    return Registration(*(style or ("none", ())), state_dict)


def finish_class(cls: type, registration: Registration | None) -> None:
    """Completes a class that has arrived, when its namespace is whole.

    Later calls for the class do nothing. Runs on the server: it imports jax when there is
    something to register.
    """
    if cls in _finished:
        return
    _finished.add(cls)
    if isinstance(cls, abc.ABCMeta):
        abc.update_abstractmethods(cls)  # type: ignore[arg-type]
    if registration is None:
        return
    if registration.style in _REGISTER:
        _REGISTER[registration.style](cls, *registration.parts)
    elif registration.style != "none":
        register_with_library(cls, registration.style, registration.parts)
    if registration.state_dict is not None:
        register_serialization(cls, registration.state_dict)


def _style(cls: type, to_iter: Any, from_iter: Any) -> tuple[str, tuple[Any, ...]]:
    made_by = getattr(to_iter, "__qualname__", "") if _is_of_tree_util(to_iter) else ""
    if made_by == "register_dataclass.<locals>.flatten_func":
        inner = _closure(to_iter)
        return "dataclass", (tuple(inner["data_fields"]), tuple(inner["meta_fields"]))
    if made_by == "register_pytree_with_keys.<locals>.flatten_func_impl":
        with_keys = _closure(to_iter)["flatten_with_keys"]
        if _is_of_tree_util(with_keys):  # only `register_static` brings a function of jax's own
            return "static", ()
        return "keyed", (with_keys, from_iter)
    if type(to_iter) is operator.methodcaller and hasattr(cls, "tree_flatten_with_keys"):
        return "keyed", (operator.methodcaller("tree_flatten_with_keys"), from_iter, to_iter)
    return "node", (to_iter, from_iter)


def _is_of_tree_util(function: Any) -> bool:
    return getattr(function, "__module__", None) in ("jax._src.tree_util", "jax.tree_util")


def _closure(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }


def _register_node(cls: type, to_iter: Any, from_iter: Any) -> None:
    import jax

    jax.tree_util.register_pytree_node(cls, to_iter, from_iter)


def _register_keyed(cls: type, with_keys: Any, from_iter: Any, to_iter: Any = None) -> None:
    import jax

    jax.tree_util.register_pytree_with_keys(cls, with_keys, from_iter, to_iter)


def _register_dataclass(cls: type, data: tuple[str, ...], meta: tuple[str, ...]) -> None:
    import jax

    names = {field.name for field in dataclasses.fields(cls) if field.init} if _is_data(cls) else ()
    dropped = tuple(set(names) - {*data, *meta})
    jax.tree_util.register_dataclass(cls, data, meta, drop_fields=dropped)


def _is_data(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def _register_static(cls: type) -> None:
    import jax

    jax.tree_util.register_static(cls)


_REGISTER: dict[str, Callable[..., None]] = {
    "node": _register_node,
    "keyed": _register_keyed,
    "dataclass": _register_dataclass,
    "static": _register_static,
}
