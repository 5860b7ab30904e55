"""Plain objects: in parts, or by the name of a constant in an installed module."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, ModuleType, SimpleNamespace
from typing import Any

from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.values.instances import reduce_by_content
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.unpack import rebuild

_constant_names: dict[str, tuple[int, dict[int, str]]] = {}

_missing = object()


def reduce_partial(value: Any, names: set[str], replacements: Mapping[str, Any]) -> Any:
    """A reduce tuple for an object with only the attributes that are read.

    Args:
        value: the object.
        names: the attributes.
        replacements: values that replace those of some attributes.
    """
    attributes = getattr(value, "__dict__", {})
    found = {name: attributes.get(name, _missing) for name in sorted(names)}
    for name, attribute in found.items():
        if attribute is _missing and rebuild.is_slot(type(value), name):
            found[name] = getattr(value, name, _missing)
    kept = {name: each for name, each in found.items() if each is not _missing} | {**replacements}
    return rebuild.make_instance, (type(value),), kept, None, None, rebuild.fill_instance


def reduce_config(value: Any) -> Any:
    """A reduce tuple for a node of omegaconf or a reference of ml_collections, as what it holds.

    `NotImplemented` for any other object.
    """
    if sys.modules.keys().isdisjoint(("ml_collections", "omegaconf")):
        return NotImplemented
    from jaxd_protocol.fingerprint.values import config_nodes  # most processes have neither

    if not (config_nodes.is_reference(value) or config_nodes.is_node(value)):
        return NotImplemented
    content = config_nodes.resolved(value)
    if config_nodes.is_reference(value):
        return NotImplemented if content is MISSING else (rebuild.same, (content,))
    if content is not value and config_nodes.is_container(content):
        return rebuild.same, (content,)
    state = config_nodes.state_of(value)
    return copyreg.__newobj__, (type(value),), state, None, None, rebuild.fill_config  # type: ignore[attr-defined]


def is_plain(cls: type) -> bool:
    """Whether an object can be made without attributes: nothing of it is held by C code."""
    if cls is SimpleNamespace:
        return True
    return not any(
        isinstance(vars(base).get("__new__"), BuiltinFunctionType)
        for base in cls.__mro__
        if base is not object
    )


def reduce_singleton(value: Any) -> Any:
    """A reduce tuple, by content, for an object of the user's own that pickle would write by name.

    The server lacks its module. `NotImplemented` for any other object.
    """
    cls = type(value)
    reduce: Any = cls.__reduce__
    if reduce is object.__reduce__ or not is_local_module(cls.__module__):
        return NotImplemented
    return reduce_by_content(value) if type(value.__reduce__()) is str else NotImplemented


def constant_name(value: Any) -> tuple[str, str] | None:
    """Module and name of an installed constant that is an instance of a class of that module.

    Such as `dataclasses.MISSING`: code compares them by identity.
    """
    cls: Any = type(value)
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ == "builtins" or is_local_module(cls.__module__):
        return None
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        return None
    content = vars(module)
    known = _constant_names.get(cls.__module__)
    if known is None or known[0] != len(content):
        names = {id(each): name for name, each in reversed(list(content.items()))}
        known = _constant_names[cls.__module__] = (len(content), names)
    name = known[1].get(id(value))
    return (cls.__module__, name) if name and content.get(name) is value else None


def installed_name(value: Any) -> tuple[str, str] | None:
    """Module and name by which each end finds an installed object; None when it has none.

    The name of a module itself is empty.
    """
    if isinstance(value, ModuleType):
        name = value.__name__
        is_here = sys.modules.get(name) is value and not is_local_module(name)
        return (name, "") if is_here else None
    try:
        return importable_name(value) if callable(value) else constant_name(value)
    except Exception:  # noqa: BLE001  a user's __getattr__ may do anything
        return None
