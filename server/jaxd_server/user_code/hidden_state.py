"""State of objects that no attribute shows: of iterators, random generators, buffers, slots."""

from __future__ import annotations

import io
import itertools
import random
import sys
import types
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.fingerprint.canonical_bytes import digest
from jaxd_protocol.fingerprint.values.classes import slot_names
from jaxd_protocol.fingerprint.values.reductions import slot_content
from jaxd_protocol.packages.installed import is_local_module

_EMPTY: Final[tuple[Any, ...]] = (
    *((), [], {}, set(), "", "\u0394", b"", bytearray(), range(0), range(1 << 70)),
    *({}.values(), {}.items()),
)
_REVERSIBLE: Final[tuple[Any, ...]] = ([], {}, {}.values(), {}.items())
_ITERATORS: Final = frozenset(
    {
        *(type(iter(each)) for each in _EMPTY),
        *(type(reversed(each)) for each in _REVERSIBLE),
        *(enumerate, filter, map, reversed, zip),
        *(each for each in vars(itertools).values() if isinstance(each, type)),
    }
)
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_MAX_DEPTH: Final = 8
_MAX_BYTES: Final = 1 << 24
"""Of an array or a buffer that is compared: a trace is not to take longer than a walk."""


def hidden_state(value: Any) -> Any:
    """What an object holds, as plain data that is equal as long as it is unchanged.

    None for an object that has no such state, or another one than these kinds.
    """
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # itertools' iterators may warn that they are pickled
        if type(value) in _ITERATORS:
            return _iterator(value)
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, io.StringIO | io.BytesIO):
            return "closed" if value.closed else (value.tell(), value.getvalue())
        if _is_buffer(value):
            view = memoryview(value)
            return digest(view.cast("B")) if view.nbytes <= _MAX_BYTES else None
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            return _of_numpy(numpy, value) or _slots(value)
        return _slots(value)
    return None


def _iterator(value: Any, depth: int = 0) -> Any:
    """How pickle would write it, with the iterators that it takes from."""
    return _plain(value.__reduce__(), depth)


def _plain(value: Any, depth: int) -> Any:
    """Plain data for a part of an iterator: its own iterators by content, all else by identity."""
    if isinstance(value, _PLAIN):
        return value
    if type(value) is range:  # iterators make a new one each time
        return value.start, value.stop, value.step
    if depth > _MAX_DEPTH:
        return None
    if type(value) in _ITERATORS:
        return _iterator(value, depth + 1)
    if type(value) in (tuple, list):  # what a dict's iterator has left is a list, new each time
        return tuple(_plain(each, depth + 1) for each in value)
    return _Same(value)


class _Same:
    """Equal where it holds the very same object, which it keeps alive: an id may be used again."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _is_buffer(value: Any) -> bool:
    """Whether it is memory that can be written to, but for a `bytearray`, which is a container."""
    if isinstance(value, bytearray) or type(value).__module__ == "builtins":
        return isinstance(value, memoryview)
    try:
        with memoryview(value) as view:
            return not view.readonly and view.c_contiguous
    except (TypeError, ValueError, BufferError):
        return False


def _of_numpy(numpy: Any, value: Any) -> Any:
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject:
            return tuple(map(_Same, value.flat))
        return digest(value.tobytes()) if value.nbytes <= _MAX_BYTES else None
    if isinstance(value, numpy.random.Generator):
        value = value.bit_generator
    if isinstance(value, numpy.random.RandomState):
        return _frozen(value.get_state(legacy=False))
    if isinstance(value, numpy.random.BitGenerator | numpy.random.SeedSequence):
        return _frozen(value.state)
    return None


def _frozen(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((name, _frozen(each)) for name, each in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _slots(value: Any) -> Any:
    """What an object of a class of the user's holds in slots."""
    cls = type(value)
    names = slot_names(cls) if is_local_module(cls.__module__) else ()
    return tuple((name, _identity(slot_content(value, name))) for name in names) or None


def _identity(value: Any) -> Any:
    return (type(value).__name__, repr(value)) if isinstance(value, _PLAIN) else _Same(value)


class HiddenStates:
    """The hidden states of some objects, at one moment.

    Args:
        objects: any; those that have no such state are left out.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        distinct = {id(each): each for each in objects if not _has_none(each)}
        found = ((each, hidden_state(each)) for each in distinct.values())
        self._states = [(each, state) for each, state in found if state is not None]

    def changed(self) -> Any:
        """The first object whose state is another one now; None when there is none."""
        return next((each for each, state in self._states if hidden_state(each) != state), None)


def _has_none(value: Any) -> bool:
    plain = (*_PLAIN, type, types.FunctionType, types.ModuleType, list, tuple, dict, set)
    return isinstance(value, plain)
