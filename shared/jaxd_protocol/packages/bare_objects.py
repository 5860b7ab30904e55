"""Objects without content, as `object()` makes them: the names by which two processes know one.

Code compares them by identity: ``if state is sentinel``. One that an installed module has is found
in that module at the other end. One that a module of the user's has is found nowhere there, as such
a module travels by value, with each function that reaches it. So a process that unpacks code has
one object for each such name, and that is the one wherever the name was packed. The same holds for
weak tables of the user's modules, in which classes are registered.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import repeat
from operator import is_
from types import MappingProxyType
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary, WeakSet

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import content_of, is_local_module

_MAKES_AN_OBJECT: Final = r".*\b(?:object|WeakKeyDictionary|WeakSet)\(\)"
_IS_A_CALL: Final = r"[\w.]+\("
_MADE_BY_PYTHON: Final = 1 << 9
"""The flag of classes that were made by a `class` statement, as CPython has it."""

Place = tuple[str, str]
"""A module, and the name of a global of it."""


def names_of_bare_object(value: object) -> tuple[Place | None, Place | None]:
    """`bare_object_name` and, where that is None, `own_object_name`."""
    installed = bare_object_name(value)
    return installed, None if installed else own_object_name(value)


def bare_object_name(value: object) -> Place | None:
    """Module and name of an `object()` that an installed module has; None for any other.

    The module is the one whose source makes it, as in ``sentinel = object()``, before those that
    import it from there: which of these are loaded differs.
    """
    return _place_of_empty(value, _MAKES_AN_OBJECT)


def _place_of_empty(value: object, by: str) -> Place | None:
    hints = _installed_places(len(sys.modules)).get(id(value), ())
    return _first([place for place in hints if _has(place, value)], by)


def _place_of_only_one(cls: type) -> Place | None:
    """Of the only object of a class that installed modules have; jax makes others of a node."""
    hints = _installed_places(len(sys.modules)).get(id(cls), ())
    found = [(place, content_of(place[0]).get(place[1])) for place in hints]
    places = [place for place, value in found if type(value) is cls]
    is_one = len({id(value) for _, value in found if type(value) is cls}) == 1
    return _first(places, _IS_A_CALL) if is_one else None


_constant_names: dict[str, tuple[int, dict[int, str]]] = {}


def constant_name(value: Any) -> Place | None:
    """Module and name of an installed constant that is an instance of a class of that module.

    Such as `dataclasses.MISSING`: code compares them by identity. And of one without content whose
    class only a function has, as `equinox.internal.str2jax` makes them for other packages.
    """
    if type(value) is object:
        return bare_object_name(value)
    cls: Any = type(value)
    home = cls.__module__  # of a class written in C it may be anything
    content = content_of(home) if type(home) is str and home != "builtins" else {}
    if not content or is_local_module(home):
        return None
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        return None
    known = _constant_names.get(home)
    if known is None or known[0] != len(content):
        names = {id(each): name for name, each in reversed(list(content.items()))}
        known = _constant_names[home] = (len(content), names)
    name = known[1].get(id(value))
    if name and content.get(name) is value:
        return home, name
    if not is_empty_constant(value):
        return None
    return _place_of_empty(value, _IS_A_CALL) or _place_of_only_one(cls)


def is_empty_constant(value: Any) -> bool:
    """Whether nothing is in it but which one it is: an `object()`, or what stands for one.

    That is an instance without attributes of a class that its module does not have.
    """
    return _is_of_empty_kind(type(value)) and not getattr(value, "__dict__", None)


def is_plain_constant(value: Any) -> bool:
    """Whether code can only ask which one it is, and nothing but text and numbers is in it."""
    return is_told_by_identity(type(value)) and all(map(_is_plain, tuple(vars(value).values())))


def _is_of_empty_kind(cls: Any) -> bool:
    if cls is object:
        return True
    if not cls.__dictoffset__ or not all(map(_may_be_empty, cls.__mro__[:-1])):
        return False
    return content_of(cls.__module__).get(cls.__qualname__) is not cls


def _may_be_empty(cls: type) -> bool:
    """Whether what a class adds to its instances is in their `__dict__`, and calls nothing."""
    content = vars(cls)
    is_plain = bool(cls.__flags__ & _MADE_BY_PYTHON) and not content.get("__slots__")
    return is_plain and "__call__" not in content and "__del__" not in content


def own_object_name(value: object) -> Place | None:
    """The same of an `object()` that a module of the user's has, or that stands for a client's.

    It stays the same as long as the module has the object: what was packed at two moments is one
    object at the other end. For that reason, too, one that had no name when it was looked at gets
    none later, unless many others were looked at since.
    """
    return _own_objects.name_of(value)


def own_name(value: Any) -> Place | None:
    """`own_object_name` of an `object()`, `own_constant_name` of any other."""
    return own_object_name(value) if type(value) is object else own_constant_name(value)


def own_constant_name(value: Any) -> Place | None:
    """Module and name of a constant of the user's: an object that stands for what it is called.

    Such as ``UNSET = Unset()`` or ``SYMMETRIC = Tag("symmetric")``: an instance of a class of the
    user's that code can only tell from others by identity, a global of a module of the user's, with
    nothing in it but text and numbers. Or what stands for a client's. None for any other object.
    """
    if not is_plain_constant(value):
        return None
    made = _own_objects.made_name_of(value)
    if made is not None or not is_local_module(type(value).__module__):
        return made
    known: Place | None = _constants.get(value)
    if value not in _constants or not (known is None or _has(known, value)):
        known = _constants[value] = _home_of(value)
    return known


def _home_of(value: Any) -> Place | None:
    """Of the names of a constant that of the module which makes it.

    Which others import it from there differs between processes. Where the source does not tell,
    it is that of its class, before a script.
    """
    places = _own_objects.places_of(value)
    made = [each for each in places if each[1] in names_made_in(file_of(each[0]), _IS_A_CALL)]
    home = type(value).__module__

    def order(place: Place) -> Any:
        is_script = place[0] in _SCRIPTS  # a process of multiprocessing has it under both names
        return place[0] != home and not (is_script and home in _SCRIPTS), is_script, place

    return min(made or places, key=order, default=None)


_SCRIPTS: Final = frozenset({"__main__", "__mp_main__"})


def keep_constant(value: Any, module: str, name: str) -> Any:
    """Notes that an object stands in this process for a client's constant of that name."""
    return _own_objects.stand_for(value, module, name)


_constants: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
"""The names of those that were asked about, and None for the others. None of them is kept alive."""

_kinds_of_constants: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_told_by_identity(cls: Any) -> bool:
    """Whether instances are nothing but attributes, and are compared as which object they are."""
    if cls is object or not cls.__flags__ & _MADE_BY_PYTHON:
        return False
    found = _kinds_of_constants.get(cls)
    if found is None:
        found = _kinds_of_constants[cls] = _has_identity_alone(cls)
    return found


def is_compared_by_identity(cls: Any) -> bool:
    """Whether instances of a class of Python code equal nothing but themselves, whatever else."""
    is_made = cls is not object and bool(cls.__flags__ & _MADE_BY_PYTHON)
    return is_made and cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__


_IDENTITY: Final = ("__eq__", "__hash__", "__getattribute__", "__reduce__", "__reduce_ex__")
_FORMS: Final = (
    *("__getattr__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"),
    "__fingerprint__",
)


def _has_identity_alone(cls: type) -> bool:
    bases = cls.__mro__[:-1]
    return (
        all(map(_may_be_empty, bases))
        and bool(cls.__dictoffset__)
        and all(getattr(cls, name) is getattr(object, name) for name in _IDENTITY)
        and not any(name in vars(base) for base in bases for name in _FORMS)
    )


_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return all(map(_is_plain, value)) if kind is tuple else kind in _PLAIN


def object_of_name(module: str, name: str) -> object:
    """What stands in this process for the `object()` of that name in a client's module."""
    return _own_objects.named(module, name, object)


WeakTable = WeakKeyDictionary[Any, Any] | WeakSet[Any]

WEAK_TABLES: Final[Mapping[str, type[WeakTable]]] = MappingProxyType(
    {"weakref.WeakKeyDictionary": WeakKeyDictionary, "_weakrefset.WeakSet": WeakSet}
)
"""Types of tables that do not keep their keys alive, by name."""


def weak_table_of_name(kind: str, module: str, name: str) -> WeakTable:
    """What stands in this process for the weak table of that name in a client's module.

    It is one for all clients: what it has of a class is a part of that class. So it can be asked
    for a class, and not which it has.
    """
    found: WeakTable = _own_objects.named(module, name, WEAK_TABLES[kind])
    return found


def own_weak_tables() -> list[tuple[Place, WeakTable]]:
    """The weak tables of the user's modules, and those that stand for clients', in their order."""
    return _own_objects.weak_tables()


def known_weak_tables() -> list[tuple[Place, WeakTable]]:
    """The same, for each call: without those that a module has got since somebody looked.

    What reads a global that is new is looked at again in any case.
    """
    return _own_objects.known_weak_tables()


def _has(place: Place, value: object) -> bool:
    module, name = place
    return content_of(module).get(name) is value


def _first(places: list[Place], by: str = _MAKES_AN_OBJECT) -> Place | None:
    """Of several names of one object the same in each process, as far as that can be."""
    made = [each for each in places if each[1] in names_made_in(file_of(each[0]), by)]
    return min(made or places, default=None)


def file_of(module: str) -> str:
    """The file of a loaded module, as it says."""
    return str(content_of(module).get("__file__"))


@lru_cache(maxsize=1)
def _installed_places(count: int) -> dict[int, list[Place]]:  # noqa: ARG001  as it is now
    """The places in loaded modules, each a hint, by the id of the object, and of its class."""
    places: dict[int, list[Place]] = {}
    kinds: dict[type, bool] = {}
    for module in sys.modules.copy():
        if is_local_module(module):
            continue
        for name, value in content_of(module).copy().items():
            cls = type(value)
            if cls not in kinds:
                kinds[cls] = _is_of_empty_kind(cls)
            if kinds[cls] and is_empty_constant(value):
                for each in (value,) if cls is object else (value, cls):
                    places.setdefault(id(each), []).append((module, name))
    return places


@lru_cache(maxsize=256)
def names_made_in(file: str, by: str) -> frozenset[str]:
    """The names to which the source of a module gives what such an expression makes.

    Args:
        file: the source.
        by: the expression, as a pattern.
    """
    try:
        with open(file, encoding="utf-8") as opened:  # pathlib imports urllib
            source = opened.read()
    except (OSError, UnicodeDecodeError, ValueError):
        return frozenset()
    targets = rf"^(\w+(?: *, *\w+)*)(?: *:[^=\n]*)? *=(?: *\w+ *=)* *{by}"
    found = re.findall(targets, source, re.MULTILINE)
    return frozenset(name for each in found for name in re.findall(r"\w+", each))


# of the user's own modules ------------------------------------------------------------------------

_MAX_KNOWN: Final = 4096
_TABLES: Final = frozenset(WEAK_TABLES.values())


class _OwnObjects:
    """The names of this process's own, and what stands for those of clients. Any thread may ask.

    What stands for a client's is kept for good, as the classes of clients are.
    """

    def __init__(self) -> None:
        self._known = BoundedDict[int, tuple[object, Place | None]](_MAX_KNOWN)
        self._made: dict[tuple[str, str, type], object] = {}
        self._made_names: dict[int, Place] = {}
        self._constants: list[object] = []
        self._tables: dict[str, tuple[int, list[str]]] = {}  # by module: how long it was
        self._found: tuple[int, int, list[tuple[Place, WeakTable]]] = (-1, -1, [])

    def name_of(self, value: object) -> Place | None:
        """The name of an object; None when it has none."""
        made = self.made_name_of(value)
        if made is not None:
            return made
        known = self._known.get(id(value))  # it keeps the object, and with that its id
        if known is None or not (known[1] is None or _has(known[1], value)):
            known = self._known[id(value)] = value, _first(self.places_of(value))
        return known[1]

    def places_of(self, value: object) -> list[Place]:
        """The names that modules of the user's have for an object now."""
        modules = _own_modules(len(sys.modules))
        return [place for module in modules for place in _places_in(module, value)]

    def made_name_of(self, value: object) -> Place | None:
        """The name of what stands for a client's; None for anything else."""
        return self._made_names.get(id(value))

    def stand_for(self, value: Any, module: str, name: str) -> Any:
        """The same object, which is kept, and has that name from now on."""
        self._constants.append(value)
        self._made_names[id(value)] = (module, name)
        return value

    def named(self, module: str, name: str, kind: type) -> Any:
        """The object of a name; the same one at each call."""
        key = module, name, kind
        found = self._made.get(key)
        if found is None:
            found = self._made.setdefault(key, _stand_ins.get(kind, kind)())
        self._made_names[id(found)] = (module, name)
        return found

    def weak_tables(self) -> list[tuple[Place, WeakTable]]:
        """Those of the user's modules by the names that they go by, and what was made."""
        found: dict[Place, Any] = {}
        modules = len(sys.modules)
        for module in _own_modules(modules):
            content = content_of(module)
            length, names = self._tables.get(module, (-1, []))
            if length != len(content):
                names = [name for name, each in content.copy().items() if type(each) in _TABLES]
                self._tables[module] = len(content), names
            for name in names:
                table = content.get(name)
                if type(table) in _TABLES:
                    found[self.name_of(table) or (module, name)] = table
        made = self._made.copy()
        found |= {
            (module, name): each for (module, name, kind), each in made.items() if kind in _TABLES
        }
        self._found = modules, len(made), sorted(found.items(), key=lambda each: each[0])
        return self._found[2]

    def known_weak_tables(self) -> list[tuple[Place, WeakTable]]:
        """As `weak_tables` has found them, while no module is new."""
        modules, made, found = self._found
        is_known = modules == len(sys.modules) and made == len(self._made)
        return found if is_known else self.weak_tables()


def _places_in(module: str, value: object) -> list[Place]:
    content = content_of(module)
    if not any(map(is_, tuple(content.values()), repeat(value))):  # as mostly: it is to be fast
        return []
    return [(module, name) for name, each in content.copy().items() if each is value]


_seen: Final[dict[str, bool]] = {}


@lru_cache(maxsize=1)
def _own_modules(count: int) -> tuple[str, ...]:  # noqa: ARG001  as it is now
    for name in sys.modules.keys() - _seen.keys():
        _seen[name] = is_local_module(name)
    return tuple(name for name in sys.modules.copy() if _seen.get(name))


def _refuse_whole(table: Any, *_: Any) -> NoReturn:
    raise PackingError(
        f"the function asks which keys the {type(table).__name__} "
        f"{'.'.join(own_object_name(table) or ())} has. On a server it is one for all clients, and "
        "can only be asked for one class. Keep the classes in a list or a dict."
    )


_OF_A_WHOLE: Final = (
    *("__iter__", "__len__", "__copy__", "__deepcopy__", "__eq__", "__or__", "__ror__", "__ior__"),
    *("__le__", "__lt__", "__ge__", "__gt__", "__and__", "__sub__", "__xor__", "copy", "clear"),
    *("items", "keys", "values", "keyrefs", "pop", "popitem", "update", "union", "issubset"),
)


_OF_A_KEY: Final = ("__setitem__", "__delitem__", "setdefault", "add", "discard", "remove")


def _refusing_shared(change: Callable[..., Any]) -> Callable[..., Any]:
    """A method that changes what a table has of a key, but not of one that other clients have."""

    def changed(table: Any, key: Any, *rest: Any) -> Any:
        if isinstance(key, type) and importable_name(key) is not None:
            raise PackingError(
                f"the function changes what the {type(table).__name__} "
                f"{'.'.join(own_object_name(table) or ())} has of {key.__qualname__}. On a server "
                "it is one for all clients. Do it outside of the function."
            )
        return change(table, key, *rest)

    return changed


def _stand_in(kind: type) -> type:
    """The type of what stands for such a table of a client's; it counts as the type itself."""
    refused: dict[str, Any] = {name: _refuse_whole for name in _OF_A_WHOLE if hasattr(kind, name)}
    methods = {name: getattr(kind, name) for name in _OF_A_KEY if hasattr(kind, name)}
    refused |= {name: _refusing_shared(method) for name, method in methods.items()}
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, **refused, "__hash__": object.__hash__})


_stand_ins: Final = {kind: _stand_in(kind) for kind in _TABLES}
_own_objects: Final = _OwnObjects()
