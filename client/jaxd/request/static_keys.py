"""Keys of static values: equal for two values that are made of the same, without looking further.

Libraries make in each call anew what is static in it: structures of trees, their graphs, tuples of
settings. Such values are compared by content and exact type, what is in them by identity, as far as
it is no such value itself. Whether that has changed inside is for others to say.

Private to jax: `PyTreeDef.__getstate__`, a list of nodes of which the third item is the aux data.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import chain
from typing import Any, Final, Generic

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper
from jaxd_protocol.fingerprint.guards import MISSING, is_implemented_in_c
from jaxd_protocol.fingerprint.values.classes import slot_names
from jaxd_protocol.fingerprint.values.reductions import own_attributes, slot_content
from jaxd_protocol.packages.bare_objects import is_told_by_identity
from jaxd_protocol.pytree import dump_literal

_ATOMS: Final = frozenset({str, bytes, int, bool, type(None), type(...)})
_FLOAT_TYPES: Final = frozenset({float, complex})
_STRING_TYPES: Final = frozenset({str})
_MAX_DEPTH: Final = 32


Seen = dict[int, tuple[int, Any]]
"""The values that a key has met, by id: their numbers, and they themselves, so that they live."""


def static_key(value: Any, kept: list[Any], seen: Seen | None = None, depth: int = 0) -> Any:
    """What is equal for two values exactly when they are made of the same, in the same way.

    Args:
        value: anything.
        kept: gets the objects that count by identity; the key is good while they live.
        seen: what the key has met so far.
        depth: in how many other values it stands.
    """
    kind: Any = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind in _FLOAT_TYPES:
        return kind, dump_literal(value)  # 0.0 and -0.0 differ
    seen = {} if seen is None else seen
    if id(value) in seen:  # it holds itself, or is held twice
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    depth += 1
    if depth > _MAX_DEPTH:
        items = None
    elif kind is tuple or kind is list or _is_named_tuple(value):
        items = iter(value)
    elif kind is dict:
        items = chain.from_iterable(value.items())
    elif kind is types.MethodType or issubclass(kind, BoundWrapper):  # a new one at each access
        kept += (value.__func__, value.__self__)
        return kind, id(value.__func__), id(value.__self__)
    elif _is_structure(kind):  # a new one each time that a tree is taken apart
        return (kind, *node_keys(value, kept, seen, depth))
    else:
        items = _attributes(value) if _is_value_class(kind) else None
    if items is None:
        kept.append(value)
        return id(value)
    return (kind, *[static_key(item, kept, seen, depth) for item in items])


def node_keys(
    structure: Any, kept: list[Any], seen: Seen | None = None, depth: int = 0
) -> list[Any]:
    """The same for each node of a structure of jax."""
    seen = {} if seen is None else seen
    nodes = structure.__getstate__()[1]
    keys = [node[2] for node in nodes if type(node[2]) is list]
    are_names = _STRING_TYPES.issuperset(map(type, chain.from_iterable(keys)))
    return [
        node
        if node[2] is None or (are_names and type(node[2]) is list)
        else (node[0], node[1], node[3], static_key(node[2], kept, seen, depth))
        for node in nodes
    ]


def hashable(key: Any) -> Any:
    """A key as one that can be looked up."""
    return tuple(map(hashable, key)) if type(key) in (tuple, list) else key


def _is_structure(cls: type) -> bool:
    jax = sys.modules.get("jax.tree_util")
    return jax is not None and cls is jax.PyTreeDef


def _is_named_tuple(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and hasattr(value, "_fields")
        and not getattr(value, "__dict__", None)
    )


def _attributes(value: Any) -> Iterator[Any]:
    """Names and contents of what an object holds."""
    slots = ((name, slot_content(value, name)) for name in slot_names(type(value)))
    own = (own_attributes(value) or {}).items()
    return chain.from_iterable((*(pair for pair in slots if pair[1] is not MISSING), *own))


_value_classes: Final = BoundedDict[type, bool](1024)


def _is_value_class(cls: Any) -> bool:
    """Whether instances are nothing but their attributes, and are compared by them.

    Those of a dataclass that are compared, and of a class that says when two are equal and hashes
    them so. Those in a result are made anew each time.
    """
    found = _value_classes.get(cls)
    if found is None:
        is_hashed = cls.__hash__ is not None and cls.__hash__ is not object.__hash__
        is_compared = is_hashed and cls.__eq__ is not object.__eq__
        is_value = is_compared or (is_dataclass(cls) and not is_told_by_identity(cls))
        found = is_value and all(map(_adds_attributes_only, cls.__mro__))
        _value_classes[cls] = found
    return found


def _adds_attributes_only(base: type) -> bool:
    if base in (object, Generic):
        return True
    content = vars(base)
    get_state = content.get("__getstate__")  # that of a dataclass with slots is its own
    is_plain = get_state is None or get_state.__module__ == "dataclasses"
    return is_plain and _CUSTOM_STATE.isdisjoint(content) and not is_implemented_in_c(base)


_CUSTOM_STATE: Final = frozenset({"__reduce__", "__reduce_ex__", "__fingerprint__"})
