"""Packing cache: objects that are pickled once, as long as their guards hold."""

from __future__ import annotations

import types
from collections.abc import Callable
from time import monotonic
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
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import Packed

_MAX_CACHED: Final = 256
_MAX_CACHED_BYTES: Final = 1 << 16
_MAX_LARGE: Final = 16
_MAX_LARGE_BYTES: Final = 2 << 20
"""Of one object: what is kept is not given back before many others are. A function of the user's
own with all that it reaches, which `eqx.filter_jit` makes a static argument, may have 400 kB."""
_MAX_REFUSALS: Final = 64
_MAX_PARTS: Final = 64
_REFUSED_FOR: Final = 20
"""That an object cannot travel holds for so many times as long as it took to find out: what decides
about that beside the object, such as the names of modules, nothing watches."""


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
    try:
        # In a tuple: of an object that can be called, a walk from there sees only what it calls.
        walked = walk_for_packing((value,), name, instead)
    except PackingError:
        return None
    if walked.fingerprint.unshared or not walked.guards.complete:
        return None
    return walked if all_changes_are_seen(walked.reach) else None


_part_guards: Final = BoundedDict[tuple[int, bytes], tuple[Any, Guards]](_MAX_PARTS)


def guards_by_parts(value: Any, name: str) -> Guards | None:
    """As those of `guard_content`, where the content is not needed.

    A function or class in the value is looked at once, as long as nothing that it reaches changes:
    many values, such as the static arguments of one library's function, have it in them.
    """
    if current_packing().archives is not None:
        whole = guard_content(value, name)
        return None if whole is None else whole.guards
    walked = _watched_walk(value, name, _guard_part)
    return None if walked is None else walked.guards


def _guard_part(walk: Walk, value: Any) -> bool:
    """Takes over the guards of a function or class of the user's; False for anything else."""
    is_code = type(value) is types.FunctionType or isinstance(value, type)
    if not is_code or not walk.is_local(value.__module__):
        return False
    key = id(value), current_packing().mark
    known = _part_guards.use(key)
    if known is None or known[0] is not value or not known[1].hold():
        found = guard_content(value, value.__qualname__)
        if found is None:
            walk.guards.incomplete()
            return True
        known = _part_guards[key] = value, found.guards
    walk.guards.absorb(known[1])
    return True


class _CachedPickle(NamedTuple):
    kept: Any  # so that nothing else gets the ids in its key
    mark: bytes
    guards: Guards
    packed: Packed


class _Refusal(NamedTuple):
    kept: Any
    mark: bytes
    guards: Guards
    reason: str
    until_s: float


_pickle_cache: Final = BoundedDict[Any, _CachedPickle](_MAX_CACHED)
_large_pickles: Final = BoundedDict[Any, _CachedPickle](_MAX_LARGE)
_refusals: Final = BoundedDict[Any, _Refusal](_MAX_REFUSALS)


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
    if refusal is not None and _holds(refusal, now):
        raise PackingError(refusal.reason)
    started_s = monotonic()
    try:
        with one_moment():
            # first: what changes meanwhile is noticed
            watched = guards_by_parts(value, type(value).__qualname__)
            packed = pack(value, what)
    except PackingError as error:
        if watched is not None and _depends_on_the_value(error):
            until_s = monotonic() + _REFUSED_FOR * (monotonic() - started_s)
            known_as = key, what
            _refusals[known_as] = _Refusal((value, kept), now, watched, str(error), until_s)
        raise
    if watched is not None and len(packed) <= _MAX_LARGE_BYTES:
        kept_in = _pickle_cache if len(packed) <= _MAX_CACHED_BYTES else _large_pickles
        kept_in[key] = _CachedPickle((value, kept), now, watched, packed)
    return packed


def _holds(refusal: _Refusal, mark: bytes) -> bool:
    is_recent = refusal.mark == mark and monotonic() < refusal.until_s
    return is_recent and refusal.guards.hold()


def _depends_on_the_value(error: PackingError) -> bool:
    """Whether packing it again fails again: not with less on the stack, or a moment later."""
    cause = error.__cause__
    return isinstance(cause, PackingError) and cause.__cause__ is cause.__context__ is None
