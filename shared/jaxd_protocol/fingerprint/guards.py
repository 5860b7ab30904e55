"""Guards: whether everything that a walk saw is unchanged, in a few microseconds.

A guard compares by identity: the objects that were found are kept, and what holds them must still
hold these very objects. A guard that fails costs another walk and nothing else; the walk decides.

Plain loops throughout: `all` would make a generator for each of them, in each call.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from operator import attrgetter, is_, itemgetter, methodcaller
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GenericAlias,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    UnionType,
)
from typing import Any, Final, ParamSpec, TypeVar

from jaxd_protocol.fingerprint.canonical_bytes import is_same
from jaxd_protocol.fingerprint.data_model import Part, ReachedObjects

ARRAY_LIMIT: Final = 1 << 20
"""Bytes of an array up to which a change in place is noticed; a larger one is pinned at its first
use, as `jax.jit` does it."""

_IMMUTABLE_TYPE: Final = 1 << 8  # `Py_TPFLAGS_IMMUTABLETYPE`
_HEAP_TYPE: Final = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`
MISSING: Final = object()
"""In place of a value: there is none."""


class Guards:
    """What a walk saw.

    Containers that only code which writes to them reads are pinned: they count as they were found.

    Attributes:
        arrays: those that can be written to.
    """

    def __init__(self) -> None:
        self._is_complete = True
        self.arrays: list[Any] = []
        self._items: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self._functions: list[tuple[FunctionType, Any, Any, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._types: list[tuple[Any, type]] = []
        self._dicts: dict[int, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {}
        self._sequences: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._attributes: list[tuple[Any, str, Any]] = []
        self._accesses: dict[type, tuple[Any, Any]] = {}
        self._lookups: set[tuple[type, str]] = set()
        self._arrays: dict[int, tuple[Any, Any]] = {}
        self._variables: list[tuple[str, str | None]] = []
        self._answers: list[tuple[Callable[[], Any], Any]] = []
        self._pinned: set[int] = set()
        self._watched: set[int] = set()
        self._registered: dict[type, tuple[Callable[[type], Any], Any]] = {}
        self._stamp_of: Callable[[], Any] | None = None
        self._stamp: Any = None
        self._empty: list[Any] = []  # the mappings that have nothing in them
        self._is_more = True  # whether `_others_hold` has anything to look at

    def looked_up(self, holder: Any, key: Any) -> bool:
        """Whether the walk has looked up a key in a mapping, by which it saw what stands there."""
        return any(each is holder and name == key for each, name, _ in self._items)

    # taken while walking ----------------------------------------------------------------------

    def item(self, holder: Mapping[Any, Any], key: Any, value: Any = MISSING) -> None:
        """`holder[key]` is `value`; without one, there is no such key."""
        self._items.append((holder, key, value))

    def function(self, function: FunctionType) -> None:
        """A function's code and defaults."""
        state = (function.__code__, function.__defaults__, function.__kwdefaults__)
        self._functions.append((function, *state))
        if function.__kwdefaults__:
            self.mapping(function.__kwdefaults__)
        self.mapping(function.__dict__)

    def cell(self, cell: CellType) -> None:
        """What a closure holds."""
        self._cells.append((cell, _contents(cell)))

    def instance(self, value: Any) -> None:
        """Which class an object has."""
        self._types.append((value, type(value)))

    def attribute(self, value: Any, name: str, content: Any) -> None:
        """An attribute that is not kept in a `__dict__`."""
        self._attributes.append((value, name, content))

    def access(self, cls: type) -> None:
        """How the attributes of a class's instances are found."""
        if cls not in self._accesses:
            self._accesses[cls] = _access(cls)

    def lookup(self, cls: type, name: str) -> None:
        """Where a class and its bases have an attribute: a property precedes an object's own."""
        if (cls, name) in self._lookups:
            return
        self._lookups.add((cls, name))
        for base in cls.__mro__:
            attributes: Any = vars(base)
            if not base.__flags__ & _IMMUTABLE_TYPE:
                self.item(attributes, name, attributes.get(name, MISSING))
            if name in attributes:
                break

    def mapping(self, value: Any) -> None:
        """All keys and values, in order."""
        self._dicts[id(value)] = (value, tuple(value), tuple(value.values()))

    def sequence(self, value: Any) -> None:
        """All items of a list or deque; of a set in the order that it has now."""
        self._sequences[id(value)] = (value, tuple(value))

    def array(self, value: Any) -> None:
        """The content of an array that can be written to, unless it is too large."""
        self.arrays.append(value)
        if value.nbytes <= ARRAY_LIMIT:
            self._arrays[id(value)] = (value, (value.shape, value.dtype, value.tobytes()))
        else:
            self.incomplete()

    def buffer(self, value: Any) -> bool:
        """The bytes of an object that lets others read them, as an `array.array` does.

        Returns:
            Whether it does.
        """
        data = _bytes_of(value)
        if data is None:
            return False
        if len(data) <= ARRAY_LIMIT:
            self.answer(partial(_bytes_of, value), data)
        else:
            self.incomplete()
        return True

    def variable(self, name: str, value: str | None) -> None:
        """A variable of the environment."""
        self._is_more = True
        self._variables.append((name, value))

    def answer(self, ask: Callable[[], Any], answer: Any) -> None:
        """What a function without arguments returns: a plain value, compared with its type."""
        self._is_more = True
        self._answers.append((ask, answer))

    def registered(self, cls: type, stamp: Callable[[], Any], state: Callable[[type], Any]) -> None:
        """With what a class is registered.

        Args:
            cls: the class.
            stamp: gives another value after each registration of any class.
            state: what is known of this one.
        """
        self._stamp_of = stamp
        self._registered[cls] = state, state(cls)

    def pin(self, value: Any) -> None:
        """Changes of this container are not looked at, unless it is watched."""
        self._pinned.add(id(value))

    def watch(self, value: Any) -> None:
        """Changes of this container are looked at, also where it is pinned."""
        self._watched.add(id(value))

    def incomplete(self) -> None:
        """Something counts as it was found."""
        self._is_complete = False

    @property
    def complete(self) -> bool:
        """Whether every change is noticed; not when something is pinned."""
        return self._is_complete and self._pinned <= self._watched

    def absorb(self, part: Guards) -> None:
        """Adds those of a part of the walk."""
        for name, mine in vars(self).items():
            theirs = vars(part)[name]
            if isinstance(mine, list):
                mine.extend(theirs)
            elif isinstance(mine, dict | set):
                mine.update(theirs)
        self._is_complete = self._is_complete and part._is_complete
        self._stamp_of = self._stamp_of or part._stamp_of

    def settle(self) -> None:
        """Ends the taking of guards."""
        pinned = self._pinned - self._watched
        for table in (self._dicts, self._sequences, self._arrays):
            for name in pinned & table.keys():
                del table[name]
        self._items = [each for each in self._items if id(each[0]) not in pinned]
        full = {name: each for name, each in self._dicts.items() if each[1]}
        self._empty = [each[0] for name, each in self._dicts.items() if name not in full]
        others = self._cells, self._types, full, self._sequences, self._attributes, self._accesses
        rest = self._arrays, self._variables, self._answers, self._registered
        self._is_more = any(map(len, (*others, *rest)))

    # looked at before each call ---------------------------------------------------------------

    def hold(self) -> bool:
        """Whether nothing has changed."""
        try:
            for holder, key, value in self._items:
                if holder.get(key, MISSING) is not value:
                    return False
            for function, code, defaults, keywords in self._functions:
                if (
                    function.__code__ is not code
                    or function.__defaults__ is not defaults
                    or function.__kwdefaults__ is not keywords
                ):
                    return False
            for mapping in self._empty:
                if len(mapping) != 0:  # which a class of the user's may tell otherwise than `bool`
                    return False
            return not self._is_more or self._others_hold()
        except RuntimeError:  # something changed its size while it was looked at
            return False

    def _others_hold(self) -> bool:
        return self._objects_hold() and self._containers_hold() and self._rest_holds()

    def _objects_hold(self) -> bool:
        for cell, content in self._cells:
            if _contents(cell) is not content:
                return False
        for value, cls in self._types:  # noqa: SIM110
            if type(value) is not cls:
                return False
        return True

    def _containers_hold(self) -> bool:
        for mapping, keys, values in self._dicts.values():
            if len(mapping) != len(keys) and not _has_noted_slots(mapping, keys):
                return False
            if not _same(mapping, keys):
                return False
            if not _same(mapping.values(), values):
                return False
        for sequence, items in self._sequences.values():
            if len(sequence) != len(items) or not _same(sequence, items):
                return False
        return True

    def _rest_holds(self) -> bool:
        for value, name, content in self._attributes:
            if getattr(value, name, MISSING) is not content:
                return False
        for cls, access in self._accesses.items():
            if _access(cls) != access:
                return False
        for array, content in self._arrays.values():
            if (array.shape, array.dtype, array.tobytes()) != content:
                return False
        for name, text in self._variables:
            if os.environ.get(name) != text:
                return False
        if self._stamp_of is not None and not self._registrations_hold(self._stamp_of()):
            return False
        return all(_answers(ask, answer) for ask, answer in self._answers)

    def _registrations_hold(self, stamp: Any) -> bool:
        if stamp != self._stamp:
            for cls, (state, known) in self._registered.items():
                if state(cls) != known:
                    return False
            self._stamp = stamp
        return True


def _has_noted_slots(mapping: Any, keys: tuple[Any, ...]) -> bool:
    """Whether a class has only got what `copyreg` notes in it when an object is copied first."""
    is_one_more = type(mapping) is MappingProxyType and len(mapping) == len(keys) + 1
    return is_one_more and next(reversed(mapping)) == "__slotnames__"


def _access(cls: type) -> tuple[Any, Any]:
    return cls.__getattribute__, getattr(cls, "__getattr__", MISSING)


def _bytes_of(value: Any) -> bytes | None:
    try:
        view = memoryview(value)
    except TypeError:
        return None
    with view:
        return view.tobytes()


def _answers(ask: Callable[[], Any], answer: Any) -> bool:
    try:
        return is_same(ask(), answer)
    except Exception:  # noqa: BLE001  a hook of the user's may raise anything
        return False


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _same(now: Any, then: tuple[Any, ...]) -> bool:
    return all(map(is_, now, then))


# whether changes of an object would be noticed ---------------------------------------------------

_GUARDED_TYPES: Final = frozenset(
    {
        *(object, int, float, complex, str, bytes, tuple, frozenset, slice, range, re.Pattern),
        *(date, datetime, time, timedelta, timezone, tzinfo, SimpleNamespace),
        *(dict, OrderedDict, defaultdict, MappingProxyType, list, deque, set, bytearray),
        *(FunctionType, MethodType, BuiltinFunctionType, CodeType, CellType),
        *(partial, property, staticmethod, classmethod, GenericAlias, UnionType),
        *(attrgetter, itemgetter, methodcaller, TypeVar, ParamSpec, type(lru_cache(len))),
        type(Part.kind),  # an attribute of named tuples
    }
)
"""Types made in C whose instances cannot change, or whose changes guards see."""

_NEVER_CHANGE: Final = frozenset({"decimal.Decimal", "zoneinfo.ZoneInfo"})
"""The same, of modules that a light client does not import for it."""


def all_changes_are_seen(reach: ReachedObjects) -> bool:
    """Whether guards see each change of what was reached, as far as they are complete."""
    # of the others only some attributes are read, and these are guarded
    inside = [one for one in reach.objects if reach.part_of(one) is None]
    one_of_each = {type(one): one for one in (*reach.numbered, *inside)}
    return all(map(_changes_are_seen, one_of_each.values()))


def _changes_are_seen(value: Any) -> bool:
    """Whether those of an object of this type are."""
    from jaxd_protocol.jax_objects.names import kind_of  # a first call does not come here

    is_other = isinstance(value, type | ModuleType) or kind_of(value) is not None
    return is_other or has_no_hidden_state(type(value))


def has_no_hidden_state(cls: type) -> bool:
    """Whether C code keeps nothing of an instance that may change unseen, as a random state."""
    return all(
        base in _GUARDED_TYPES
        or base.__module__ == "numpy"
        or not is_implemented_in_c(base)
        or f"{base.__module__}.{base.__qualname__}" in _NEVER_CHANGE
        for base in cls.__mro__
    )


def is_implemented_in_c(cls: type) -> bool:
    """Whether a class, or how its instances are made, is not written in Python."""
    is_of_python = cls.__flags__ & _HEAP_TYPE
    return not is_of_python or isinstance(vars(cls).get("__new__"), BuiltinFunctionType)
