"""Plain objects: in parts, or by the name of a constant in an installed module."""

from __future__ import annotations

import copyreg
import sys
from collections import OrderedDict
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.values.classes import slot_names
from jaxd_protocol.fingerprint.values.mappings import has_own_attributes, is_its_own_dict
from jaxd_protocol.fingerprint.values.reductions import (
    edits_state,
    find_in_class,
    forwards,
    is_made_of_python,
    makes_new_objects,
    needs_arguments,
    new_object,
    own_attributes,
    reduce_by_content,
    reduce_object,
    set_state,
    sets_state,
    slot_content,
    writes_local_name,
)
from jaxd_protocol.packages.bare_objects import constant_name, object_of_name, own_object_name
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.unpack import rebuild


def reduce_partial(value: Any, names: set[str], replacements: Mapping[str, Any]) -> Any:
    """A reduce tuple for an object with only the attributes that are read.

    Args:
        value: the object.
        names: the attributes.
        replacements: values that replace those of some attributes.
    """
    attributes = own_attributes(value) or {}
    found = {name: attributes.get(name, MISSING) for name in sorted(names)}
    for name, attribute in found.items():
        if attribute is MISSING and rebuild.is_slot(type(value), name):
            found[name] = slot_content(value, name)
    kept = {name: each for name, each in found.items() if each is not MISSING} | {**replacements}
    return rebuild.make_instance, (type(value),), kept, None, None, rebuild.fill_instance


def reduce_mapping(value: Any, names: set[str] | None) -> Any:
    """A reduce tuple for a subclass of dict with only the items that are read.

    Also for a whole one whose attributes are its items, or whose class may make something else of
    items that are set. `NotImplemented` for any other.

    Args:
        value: the object.
        names: keys of items, and names of attributes; None: all.
    """
    is_own = is_its_own_dict(value)
    if names is None and not (is_own or _sets_items(type(value))):
        return NotImplemented
    items = {key: each for key, each in dict.items(value) if names is None or key in names}
    attributes = value.__dict__ if has_own_attributes(value) and not is_own else {}
    kept = {name: each for name, each in attributes.items() if names is None or name in names}
    both = [name for name, each in kept.items() if items.get(name, MISSING) is each]
    kept = {name: each for name, each in kept.items() if name not in both}
    if "_box_config" in kept:
        kept["_box_config"] = kept["_box_config"] | {"__created": True, "__unpickling": False}
    state = (items, kept, both, is_own)
    return rebuild.make_mapping, (type(value),), state, None, None, rebuild.fill_mapping


def _sets_items(cls: Any) -> bool:
    """Whether pickle would give items to a method of a class, and all else is set as it is."""
    return (
        type(find_in_class(cls, "__setitem__")) is FunctionType
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ in (object.__reduce__, OrderedDict.__reduce__)
        and cls.__getstate__ is object.__getstate__
        and type(cls.__new__) is BuiltinFunctionType
        and not slot_names(cls)
    )


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
    """Whether an object can be made without attributes, which are set afterwards."""
    return cls is SimpleNamespace or is_made_of_python(cls)


def reduce_own(value: Any) -> Any:
    """A reduce tuple for any other object: what a walk counts of it.

    By name, for an `object()` of a module of the user's. By content, for an object of the user's
    own, or around a function of the user's, that pickle would write by name: the server lacks its
    module. With its own state, for one that passes attributes on to another object, or whose class
    makes none without arguments that pickle does not know, or sets its state by a method. Without
    `__new__` of its class where that only makes a new object: what else it does would be done on
    the server once more.
    """
    cls = type(value)
    name = own_object_name(value) if cls is object else None
    if name is not None:
        return object_of_name, name
    if writes_local_name(value, is_local_module):
        return reduce_by_content(value)
    reduced = reduce_object(value)
    if type(reduced) is str:
        return reduce_by_content(value) if is_local_module(cls.__module__) else reduced
    make, arguments, *parts, setter = (*reduced, None, None, None, None)[:6]
    if make is copyreg.__newobj__ and _is_made_bare(cls, arguments):  # type: ignore[attr-defined]
        return (rebuild.make_instance, arguments, *parts, setter or set_state)
    if not (forwards(cls) or edits_state(cls) or sets_state(cls)):
        return reduced
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]
        make = new_object
    return (make, arguments, *parts, setter or set_state)


def _is_made_bare(cls: type, arguments: tuple[Any, ...]) -> bool:
    return needs_arguments(cls) or (len(arguments) == 1 and makes_new_objects(cls))


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
