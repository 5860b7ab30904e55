"""Packing cache: objects that are pickled once, as long as their guards hold."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jaxd.request.static_keys import hashable, static_key
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import (
    Guards,
    WalkResult,
    current_packing,
    one_moment,
    walk_for_packing,
)
from jaxd_protocol.fingerprint.guards import all_changes_are_seen
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.pickling.pack.arguments import (
    Refusal,
    depends_on_the_value,
    pack,
    remembered_until,
)
from jaxd_protocol.pickling.pack.functions import Packed

_MAX_CACHED: Final = 256
_MAX_CACHED_BYTES: Final = 1 << 16
_MAX_LARGE: Final = 16
_MAX_LARGE_BYTES: Final = 2 << 20
"""Of one object: what is kept is not given back before many others are. A function of the user's
own with all that it reaches, which `eqx.filter_jit` makes a static argument, may have 400 kB."""
_MAX_REFUSALS: Final = 64
_MAX_PARTS: Final = 64


class GuardedContent(NamedTuple):
    """The content hash of an object, and the guards that detect changes of it.

    Attributes:
        content: sixteen bytes, the same in every process.
        guards: hold as long as nothing changes.
    """

    content: bytes
    guards: Guards


def guard_content(value: Any, name: str) -> GuardedContent | None:
    """The content and guards of an object; None where guards would not detect every change."""
    walked = _watched_walk(value, name)
    return None if walked is None else GuardedContent(walked.fingerprint.digest, walked.guards)


def _watched_walk(
    value: Any, name: str, instead: Callable[[Walk, Any], bool] | None = None
) -> WalkResult | None:
    # In a tuple: of an object that can be called, a walk from there sees only what it calls.
    looked_at = value if _is_code(value) else (value,)
    try:
        walked = walk_for_packing(looked_at, name, instead)
    except PackingError:
        return None
    if walked.fingerprint.unshared or not walked.guards.complete:
        return None
    return walked if all_changes_are_seen(walked.reach) else None


class _Part(NamedTuple):
    value: Any
    guards: Guards | None  # None: nothing sees all that may change in it
    until_s: float = math.inf
    covered: Mapping[int, Any] = MappingProxyType({})  # code in it, of which they see all, by id

    def holds(self, value: Any) -> bool:
        if self.value is not value:
            return False
        return monotonic() < self.until_s if self.guards is None else self.guards.hold()


_parts: Final = BoundedDict[tuple[int, bytes], _Part](_MAX_PARTS)


def guards_by_parts(value: Any, name: str) -> Guards | None:
    """As those of `guard_content`, where the content is not needed.

    A function or class in the value is looked at once, as long as nothing that it reaches changes:
    many values, such as the static arguments of one library's function, have it in them.
    """
    if current_packing().archives is not None:
        whole = guard_content(value, name)
        return None if whole is None else whole.guards
    covered: dict[int, Any] = {}  # one part mostly leads to the others, in a library

    def guard_part(walk: Walk, value: Any) -> bool:
        if not _is_code(value) or not walk.is_local(value.__module__):
            return False
        if id(value) not in covered:
            covered.update(_guard_part(walk, value).covered)
        return True

    walked = _watched_walk(value, name, guard_part)
    return None if walked is None else walked.guards


def _guard_part(walk: Walk, value: Any) -> _Part:
    """Takes over the guards of a function or class of the user's."""
    key = id(value), current_packing().mark
    known = _parts.use(key)
    if known is None or not known.holds(value):
        known = _parts[key] = _look_at(value)
    if known.guards is None:
        walk.guards.incomplete()
    else:
        walk.guards.absorb(known.guards)
    return known


def _is_code(value: Any) -> bool:
    return type(value) is types.FunctionType or isinstance(value, type)


def _look_at(value: Any) -> _Part:
    started_s = monotonic()
    found = _watched_walk(value, value.__qualname__)
    if found is None:
        return _Part(value, None, remembered_until(started_s))
    inside = {id(each): each for each in (*found.reach.functions, *found.reach.classes)}
    return _Part(value, found.guards, covered=inside)


class _CachedPickle(NamedTuple):
    kept: Any  # so that nothing else gets the ids in its key
    mark: bytes
    guards: Guards
    packed: Packed


_pickle_cache: Final = BoundedDict[Any, _CachedPickle](_MAX_CACHED)
_large_pickles: Final = BoundedDict[Any, _CachedPickle](_MAX_LARGE)
_refusals: Final = BoundedDict[Any, Refusal](_MAX_REFUSALS)


def pack_cached(value: Any, what: str) -> Packed:
    """An object as bytes; of the same object the same, if nothing in it has changed.

    So it is for one that is made anew of the same objects, see `static_key`. That one cannot travel
    is found out again when something in it changes, and after a while.

    Args:
        value: any object.
        what: how to call it in an error.

    Raises:
        PackingError: when it reaches something that cannot travel.
    """
    now = current_packing().mark
    kept: list[Any] = []
    key = hashable(static_key(value, kept))
    known = _pickle_cache.get(key) or _large_pickles.use(key)
    if known is not None and known.mark == now and known.guards.hold():
        return known.packed
    refusal = _refusals.get((key, what))
    if refusal is not None:
        refusal.check()
    started_s = monotonic()
    try:
        with one_moment():
            # first: what changes meanwhile is noticed
            watched = guards_by_parts(value, type(value).__qualname__)
            packed = pack(value, what)
    except PackingError as error:
        if watched is not None and depends_on_the_value(error):
            _refusals[key, what] = Refusal.of((value, kept), watched, error, started_s)
        raise
    if watched is not None and len(packed) <= _MAX_LARGE_BYTES:
        kept_in = _pickle_cache if len(packed) <= _MAX_CACHED_BYTES else _large_pickles
        kept_in[key] = _CachedPickle((value, kept), now, watched, packed)
    return packed
