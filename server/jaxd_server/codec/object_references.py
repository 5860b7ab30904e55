"""References to objects in a result that are no data: the client has its own in their place.

A function that was checked has, on both ends, the same objects under the same numbers in its walk.
So an object of it that turns up in a result can be named by its number.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from enum import Enum
from types import MethodType
from typing import Any, Final

import numpy as np

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.jax_objects.data_values import numeric_function_name, parts_of
from jaxd_protocol.packages.bare_objects import own_name
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.pack.instances import installed_name
from jaxd_protocol.pickling.unpack.archives import content_id_of
from jaxd_protocol.pickling.unpack.object_tokens import keep_object
from jaxd_protocol.pytree.data_values import dump_parts
from jaxd_protocol.pytree.references import Reference, function_mark

_LIMIT: Final = 1000
_MAX_NAMED: Final = 32
_DATA: Final = frozenset({bool, bytes, complex, dict, float, int, list, set, str, tuple})


class ObjectNumbers:
    """The objects of the functions that were received last. Safe from any thread.

    Args:
        limit: of how many functions.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._arrived = BoundedDict[bytes, Sequence[Any]](limit)
        self._places: dict[int, dict[bytes, int]] = {}
        self._lock = threading.RLock()  # guards both; dropping an object may run its finalizer

    def add(self, fingerprint: bytes, objects: Sequence[Any]) -> None:
        """Notes what a function reaches, in the order of its walk."""
        mark = function_mark(fingerprint)
        forgotten: list[Sequence[Any]] = []
        with self._lock:
            if mark in self._arrived:
                forgotten.append(self._forget(mark))
            elif len(self._arrived) >= self._arrived.limit:
                forgotten.append(self._forget(next(iter(self._arrived))))
            self._arrived[mark] = objects
            for number, value in enumerate(objects):
                if type(value) not in _DATA:
                    self._places.setdefault(id(value), {}).setdefault(mark, number)

    def _forget(self, mark: bytes) -> Sequence[Any]:
        objects = self._arrived.pop(mark)
        for value in objects:
            places = self._places.get(id(value), {})
            places.pop(mark, None)
            if not places:
                self._places.pop(id(value), None)
        return objects

    def of(self, value: Any) -> tuple[tuple[bytes, int], ...]:
        """Marks of functions that reach this very object, each with its number there.

        Those that arrived last come first.
        """
        with self._lock:
            places = self._places.get(id(value), {})
            return tuple(reversed(places.items()))[:_MAX_NAMED]

    def at(self, places: Iterable[tuple[bytes, int]]) -> Any:
        """The object that `of` named so, here or in another process.

        Raises:
            LookupError: when none of these functions is here, or not any more.
        """
        with self._lock:
            for mark, number in places:
                objects = self._arrived.get(mark, ())
                if 0 <= number < len(objects):
                    return objects[number]
        raise LookupError("no function is here that reaches it")


object_numbers: Final = ObjectNumbers()
"""Those of this process."""


Place = tuple[str, tuple[Any, ...]]


def reference_to(value: Any) -> Reference | None:
    """How the client finds its own object for one of the server's; None when it has none."""
    place = _place_of(value)
    return None if place is None else Reference(*place, keep_object(value), about(value))


def opaque(value: Any) -> Reference:
    """A token for an object that no client can have."""
    return Reference("o", (), keep_object(value), about(value))


def class_name(cls: type) -> tuple[str, str, bytes] | None:
    """Module, name and content id of a class; without content id where clients import it."""
    content = content_id_of(cls)
    if content is not None:
        return cls.__module__, cls.__qualname__, content
    name = installed_name(cls)
    return None if name is None else (*name, b"")


def _place_of(value: Any) -> Place | None:
    if isinstance(value, type):
        name = class_name(value)
        return None if name is None else ("k", name)
    if numeric_function_name(value) is not None:
        return _place_by_kind(value)
    installed = installed_name(value)
    if installed is not None and not is_local_module(installed[0]):
        return "i", installed  # a number would be known only to clients of one function
    own = own_name(value)
    if own is not None:
        return "i", own  # for the same reason
    places = object_numbers.of(value)
    if places:
        return "n", (places,)
    content = content_id_of(value)
    if content is not None:
        return "c", (content,)
    return _place_by_kind(value)


def _place_by_kind(value: Any) -> Place | None:
    if isinstance(value, np.dtype):
        return "d", (value.name,)
    data = parts_of(value)
    if data is not None:
        return _data(*data)
    if isinstance(value, MethodType):
        return _method(value)
    if isinstance(value, Enum):
        name, member = class_name(type(value)), value.name
        return None if name is None or member is None else ("e", (*name, member))
    installed = installed_name(value)
    return None if installed is None else ("i", installed)


def _data(kind: str, parts: tuple[Any, ...]) -> Place | None:
    """A value that is nothing but data, where its client finds all that it is made of."""
    try:
        return "v", (kind, dump_parts(parts, _part))
    except (LookupError, RecursionError):
        return None


def _part(value: Any) -> tuple[Any, ...]:
    """The reference to a part, for which there is no token: the whole has one.

    Raises:
        LookupError: when the client has none.
    """
    place = _place_of(value)
    if place is None:
        raise LookupError
    return Reference(*place, b"", "").plain()


def _method(method: MethodType) -> Place | None:
    owner, function = method.__self__, method.__func__
    name = getattr(function, "__name__", "")
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            if getattr(found, "__func__", found) is not function:
                return None
            reference = reference_to(owner)
            return None if reference is None else ("m", (reference.plain(), name))
    return None


def about(value: Any) -> str:
    """What it is, in a few words: ``function update of optax.transforms``."""
    kind = type(value)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    if not isinstance(name, str):
        return f"{kind.__module__}.{kind.__qualname__}"[:200]
    return f"{kind.__name__} {name} of {getattr(value, '__module__', None)}"[:200]
