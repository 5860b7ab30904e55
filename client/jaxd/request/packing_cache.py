"""Packing cache: objects that are pickled once, as long as their guards hold."""

from __future__ import annotations

import re
import types
from collections import OrderedDict, defaultdict, deque
from functools import partial
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import Guards, walk
from jaxd_protocol.fingerprint.archives.current import current_archives
from jaxd_protocol.jax_objects.names import kind_of
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import Packed

_MAX_KEPT: Final = 256
_MAX_KEPT_BYTES: Final = 1 << 16
"""Of one object: what is kept is not given back before many others are."""


class Watched(NamedTuple):
    """The content hash of an object, and the guards that detect changes of it.

    Attributes:
        content: sixteen bytes, the same in every process.
        guards: hold as long as nothing changes.
    """

    content: bytes
    guards: Guards


def watch(value: Any, name: str) -> Watched | None:
    """The content and guards of an object; None where guards would not detect every change."""
    try:
        # In a tuple: of an object that can be called, a walk from there sees only what it calls.
        walked = walk((value,), name, archives=current_archives())
    except PackingError:
        return None
    if walked.fingerprint.unshared or not walked.guards.complete:
        return None
    if not all(map(_is_seen, walked.reach.numbered)):
        return None
    return Watched(walked.fingerprint.digest, walked.guards)


class _Kept(NamedTuple):
    value: Any  # kept, so that nothing else gets its id
    archives: bytes
    guards: Guards
    packed: Packed


_kept: Final = BoundedDict[int, _Kept](_MAX_KEPT)


def pack_once(value: Any, what: str) -> Packed:
    """An object as bytes; of the same object the same, if nothing in it has changed.

    Args:
        value: any object.
        what: how to call it in an error.

    Raises:
        PackingError: when it reaches something that cannot travel.
    """
    archives = current_archives()
    now = b"" if archives is None else archives.archive.content
    known = _kept.get(id(value))
    if known is not None and known.archives == now and known.guards.hold():
        return known.packed
    watched = watch(value, type(value).__qualname__)  # first: what changes meanwhile is noticed
    packed = pack(value, what)
    if watched is not None and len(packed) <= _MAX_KEPT_BYTES:
        _kept[id(value)] = _Kept(value, now, watched.guards, packed)
    return packed


# whether changes of an object would be noticed ---------------------------------------------------

_GUARDED: Final = frozenset(
    {
        *(object, int, float, complex, str, bytes, tuple, frozenset, slice, re.Pattern),
        *(dict, OrderedDict, defaultdict, types.MappingProxyType, list, deque, set, bytearray),
        *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType),
        *(types.CellType, partial, property, staticmethod, classmethod),
    }
)
"""Types made in C whose instances cannot change, or whose changes guards see."""


def _is_seen(value: Any) -> bool:
    if isinstance(value, type | types.ModuleType) or kind_of(value) is not None:
        return True
    return all(
        base in _GUARDED or base.__module__ == "numpy" or not is_made_in_c(base)
        for base in type(value).__mro__
    )


def is_made_in_c(cls: type) -> bool:
    """Whether a class, or how its instances are made, is not written in Python."""
    is_of_python = cls.__flags__ & _HEAP_TYPE
    return not is_of_python or isinstance(vars(cls).get("__new__"), types.BuiltinFunctionType)


_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
