"""Where Python, jax and libraries keep that a class of the user's is registered with them.

A registration is a part of the class, as a base is: it counts with the class and travels with it.
So on a server nobody else meets it, since a class with another registration is another class there,
although what it is registered with is shared by all.

Private to Python: `abc._get_dump`, the attribute `registry` of what `functools.singledispatch`
makes, and `data` of weak tables.
"""

from __future__ import annotations

import abc
import copyreg
import functools
import sys
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, NamedTuple

from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.jax_objects.registrations import node_count, node_of
from jaxd_protocol.packages.bare_objects import known_weak_tables, own_weak_tables
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import content_of, is_local_module


class Registered(NamedTuple):
    """With what a class is registered.

    Attributes:
        abstract: installed abstract classes, whose `isinstance` knows it.
        forms: installed functions of `functools.singledispatch`, each with its form for the class.
        reducers: the function by which `copyreg` has it copied and pickled, if there is one.
        entries: weak tables of the user's modules, each with what it has of the class; True where
            it is a set.
    """

    abstract: tuple[Any, ...] = ()
    forms: tuple[tuple[Any, Any], ...] = ()
    reducers: tuple[Any, ...] = ()
    entries: tuple[tuple[Any, Any], ...] = ()


def registered(cls: type) -> Registered:
    """With what a class is registered now, in an order that is the same everywhere."""
    forms = [(each, each.registry.get(cls)) for each in _dispatchers.all()]
    return Registered(
        tuple(sorted(_abstract.of(cls), key=_name)),
        tuple(
            sorted((each for each in forms if each[1] is not None), key=lambda form: _name(form[0]))
        ),
        (copyreg.dispatch_table[cls],) if cls in copyreg.dispatch_table else (),
        tuple((table, _entry(table, cls)) for _, table in own_weak_tables() if cls in table),
    )


def _entry(table: Any, cls: type) -> Any:
    return True if isinstance(table, weakref.WeakSet) else table[cls]


def _name(value: Any) -> tuple[str, str]:
    name = importable_name(value)
    assert name is not None
    return name


def emit_registered(walk: Walk, cls: type) -> None:
    """Appends with what a class of the user's is registered; nothing where it is with nothing."""
    walk.guards.registered(cls, stamp, _state)
    found = registered(cls)
    if not any(found):
        return
    walk.tag("registered")
    names = [importable_name(each) for each in (*found.abstract, *(one for one, _ in found.forms))]
    walk.part("class", f"what {cls.__qualname__} is registered with", repr(names).encode())
    walk.text(len(found.abstract))
    for each in found.abstract:
        walk.emit_labelled("", each)
    walk.text(len(found.forms))
    for dispatcher, form in found.forms:
        walk.emit_labelled("", dispatcher)
        walk.emit_labelled(f"attribute {dispatcher.__name__}.registry", form)
        walk.guards.item(dispatcher.registry, cls, form)
    walk.text(len(found.reducers))
    for reducer in found.reducers:
        walk.emit_labelled("global copyreg.dispatch_table", reducer)
        walk.guards.item(copyreg.dispatch_table, cls, reducer)
    walk.text(len(found.entries))
    for table, entry in found.entries:
        walk.emit_labelled("", table)
        walk.emit_labelled(f"a weak table's entry of {cls.__qualname__}", entry)


def stamp() -> tuple[int, ...]:
    """Another value after each registration of a class with anything."""
    forms = sum([len(each.registry) for each in _dispatchers.all()])
    reducers = len(copyreg.dispatch_table)
    entries = hash(tuple(number for _, table in known_weak_tables() for number in _numbers(table)))
    return abc.get_cache_token(), node_count(), forms, reducers, entries  # type: ignore[return-value]


def _numbers(table: Any) -> Iterator[int]:
    """Others when the table has something else of a key."""
    yield len(table.data)
    if isinstance(table, weakref.WeakKeyDictionary):
        yield from map(id, table.data.values())  # type: ignore[attr-defined]


class _Same:
    """Equal to one of the same object alone, whatever the object says."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _state(cls: type) -> Any:
    *others, entries = registered(cls)
    return others, [(_Same(table), _Same(entry)) for table, entry in entries], node_of(cls)


def is_own_node(cls: type) -> bool:
    """Whether an installed class was made a node of jax's trees by code of the user's."""
    entry = node_of(cls)
    parts = () if entry is None else (entry.to_iter, entry.from_iter)
    homes = [each.__globals__ for each in parts if isinstance(each, FunctionType)]
    names = [
        str(home.get("__name__")) for home in homes if content_of(str(home.get("__name__"))) is home
    ]
    return any(map(is_local_module, names))  # not those of clients, where this is a server


def virtual_subclasses(cls: type) -> set[type]:
    """The classes that were registered with an abstract class, or with one below it."""
    found: set[type] = set()
    left: list[Any] = [cls]
    seen = {cls}
    while left:
        each = left.pop()
        found.update(_registered_with(each))
        below = [one for one in type.__subclasses__(each) if one not in seen]
        left += below
        seen.update(below)
    return found


def _registered_with(cls: type) -> Iterator[type]:
    if not isinstance(cls, abc.ABCMeta):
        return iter(())
    references = abc._get_dump(cls)[0]  # type: ignore[attr-defined]  # noqa: SLF001
    return (found for each in references if (found := each()) is not None)


_NOBODY_ASKS: Final = frozenset({"abc", "typing"})
"""Modules of bases that make a class abstract, or a protocol."""


class _AbstractClasses:
    """The installed abstract classes with which others were registered. Any thread may ask.

    Found by looking at all classes, once after registrations: there is no other record.
    """

    def __init__(self) -> None:
        self._token: object = None
        self._found: dict[type, set[type]] = {}

    def of(self, cls: type) -> set[type]:
        """Those with which a class was registered itself, without those that follow from others."""
        if weakref.getweakrefcount(cls) < 2:  # one is of its base, another of each registry
            return set()
        token = abc.get_cache_token()
        if token != self._token:
            self._found, self._token = self._look(), token
        found = self._found.get(cls, set())
        return found.difference(cls.__mro__, *(each.__mro__[1:] for each in found))

    @staticmethod
    def _look() -> dict[type, set[type]]:
        found: dict[type, set[type]] = {}
        left: list[Any] = [object]
        seen = {id(object)}  # some classes of `typing` warn when they are compared
        while left:
            for each in type.__subclasses__(left.pop()):
                if id(each) in seen:
                    continue
                seen.add(id(each))
                left.append(each)
                for one in _registered_with(each):
                    found.setdefault(one, set()).update(_installed_above(each))
        return found


def _installed_above(cls: type) -> Iterator[type]:
    """The installed ones among an abstract class and its bases."""
    for base in cls.__mro__:
        is_abstract = isinstance(base, abc.ABCMeta) and base.__module__ not in _NOBODY_ASKS
        if is_abstract and importable_name(base) is not None:
            yield base


_WITHOUT_DISPATCHERS: Final = frozenset({"jax", "jaxlib", "numpy"})
"""Large packages that have no functions of `functools.singledispatch`."""


class _Dispatchers:
    """The functions that `functools.singledispatch` has made in installed modules."""

    def __init__(self) -> None:
        self._code = functools.singledispatch(_dispatched).__code__  # type: ignore[attr-defined]
        self._seen: set[str] = set()
        self._count = 0
        self._found: dict[int, Any] = {}

    def all(self) -> list[Any]:
        """Those of the modules that are loaded now."""
        if len(sys.modules) != self._count:
            self._count = len(sys.modules)
            for name in sys.modules.keys() - self._seen:
                self._look(name)
        return list(self._found.values())

    def _look(self, name: str) -> None:
        content = content_of(name)
        if getattr(content.get("__spec__"), "_initializing", False):
            return
        self._seen.add(name)
        if name.partition(".")[0] in _WITHOUT_DISPATCHERS:
            return
        for value in list(content.values()):
            is_one = type(value) is FunctionType and value.__code__ is self._code
            if is_one and importable_name(value) is not None:  # of an installed module
                self._found[id(value)] = value


def _dispatched(value: Any) -> Any:
    return value


_abstract: Final = _AbstractClasses()
_dispatchers: Final = _Dispatchers()
