"""What jax holds that decides about every program, and that anybody's code can change.

Its tables of rules (lowering, batching, derivatives, types of arguments), its primitives, and the
classes of its tracers and types. None of this is reached by a function that uses it: whoever
replaces the lowering rule of `sin_p` changes all that takes a sine. A client refuses such functions
where code of the user's is there; a server undoes it, since it would hold for all clients.

Private to jax: that its modules keep rules in dicts and sets by primitive or by type, the classes
in `_BASES`, and what `_deprecations` of a module says of names. When they move,
tests/shared/jax_objects/test_installed_state.py fails.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from jaxd_protocol.jax_objects.names import attribute, is_of_jax, kind_of, name_of_jax_object
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import OWN_PACKAGES, content_of, is_local_module

_PRIMITIVE: Final = ("jax._src.core", "Primitive")
_BASES: Final = (
    ("jax._src.core", "Tracer"),
    ("jax._src.core", "Trace"),
    ("jax._src.core", "AbstractValue"),
    _PRIMITIVE,
    ("jax._src.basearray", "Array"),
)
"""Classes that have methods which every trace calls, as do those that derive from them."""

_TABLES: Final = frozenset({dict, OrderedDict, defaultdict, set})
_MOST_TABLES_INSIDE: Final = 64
_DEEPEST: Final = 6
_MOST_ITEMS: Final = 64
_PACKAGE: Final = "jax"
_EXPERIMENTAL: Final = "jax.experimental."
_TRUSTED: Final = frozenset({"jax", "jaxlib", "numpy", "functools", "builtins"})
_SHOWN: Final = frozenset({"__repr__", "__str__", "__format__"})
_MISSING: Final = object()


class Change(NamedTuple):
    """Something in jax that is not what jax, or a library on it, has put there.

    Attributes:
        holder: a dict or set, or the class or primitive whose attribute it is.
        key: under which it is there.
        before: what was there, as far as this process knows; else `_MISSING`.
        where: of it in words: ``jax._src.interpreters.mlir._lowerings[sin]``.
        code: the function that is not of an installed module; empty where that is not known.
    """

    holder: Any
    key: Any
    before: Any
    where: str
    code: str

    def undo(self) -> None:
        """Puts back what was there."""
        if self.before is _MISSING:
            self._remove()
        elif isinstance(self.holder, set):
            self.holder.add(self.key)
        elif isinstance(self.holder, dict):
            self.holder[self.key] = self.before
        elif isinstance(self.holder, type):
            type.__setattr__(self.holder, self.key, self.before)
        else:
            vars(self.holder)[self.key] = self.before

    def _remove(self) -> None:
        if isinstance(self.holder, set):
            self.holder.discard(self.key)
        elif isinstance(self.holder, type):
            type.__delattr__(self.holder, self.key)
        else:
            content = self.holder if isinstance(self.holder, dict) else vars(self.holder)
            content.pop(self.key, None)


class _Holder:
    """One table, primitive, class or module.

    Attributes:
        owner: as `Change.holder`.
        name: in words.
        content: what it holds: a mapping or a set.
        is_table: whether its keys are primitives or types.
        own: what belongs there.
        last: its content when it was looked at last; None before that.
        found: what did not belong there then.
    """

    __slots__ = ("content", "found", "is_table", "last", "name", "own", "owner")

    def __init__(self, owner: Any, name: str, content: Any, *, is_table: bool) -> None:
        self.owner = owner
        self.name = name
        self.content = content
        self.is_table = is_table
        self.own: dict[Any, Any] = {}
        self.last: Any = None
        self.found: list[Change] = []


@functools.cache
def _names_in_code(module: str) -> frozenset[str]:
    """The names in the code of a module itself: what it defines and imports, and some more."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    code = None if get_code is None else get_code(module)
    return frozenset(() if code is None else code.co_names)


def _is_gone(module: dict[str, Any], name: str) -> bool:
    """Whether jax has removed a name, and only says so: programs put back what libraries need."""
    _, there = module.get("_deprecations", {}).get(name, ("", name))
    return there is None


class InstalledState:
    """Looks whether jax is as it was when it was imported. For one thread at a time.

    The first look at something knows by whose code it is what does not belong there; later looks
    also know what was replaced or removed by anything.

    Args:
        is_foreign: whether functions with these globals are not of an installed module.
        for_others: whether this process traces for others. Then all that modules of jax have under
            their names counts, and what few functions use; else of names only those that jax's own
            code gives, where foreign functions stand under them.
    """

    def __init__(
        self, is_foreign: Callable[[dict[str, Any]], bool], *, for_others: bool = False
    ) -> None:
        self._is_foreign = is_foreign
        self._for_others = for_others
        self._modules: list[_Holder] = []
        self._holders: dict[int, _Holder] = {}
        self._seen: set[str] = set()
        self._new: frozenset[str] = frozenset()  # modules that were loaded since the last look
        self._count = 0
        self._installed: dict[int, dict[str, Any]] = {}  # globals of modules, by their ids

    def changes(self) -> list[Change]:
        """What there is that does not belong there; nothing where jax is not loaded."""
        if "jax._src.core" not in sys.modules:
            return []
        is_new = len(sys.modules) != self._count
        if is_new:
            self._count = len(sys.modules)
            self._find()
        found: list[Change] = []
        others: list[int] = []
        for number, each in self._holders.items():
            if _differ(each.content, each.last):
                if (
                    each.is_table
                    and not each.last
                    and each.content
                    and not _has_rules(each.content)
                ):
                    others.append(number)  # it was empty, and is none with rules
                    continue
                self._look(each, is_new=is_new or each.last is None)
            found += each.found
        for number in others:
            del self._holders[number]
        seen: set[int] = set()  # most stand in several modules
        for module in self._modules:
            if _differ(module.content, module.last):
                self._look_at_names(module, seen)
            found += module.found
        return found

    def _find(self) -> None:
        """Takes note of the tables and primitives of modules that were loaded since."""
        classes = [cls for cls in _traced_classes() if is_of_jax(cls)]
        for cls in classes:
            self._add(cls, f"{cls.__module__}.{cls.__qualname__}", vars(cls))
        primitive = attribute(*_PRIMITIVE)
        primitives = {cls for cls in classes if issubclass(cls, primitive)}
        names = [each for each in sys.modules.copy() if each not in self._seen]
        self._new = frozenset(names)
        for name in names:
            content = content_of(name) if name.partition(".")[0] == _PACKAGE else {}
            if getattr(content.get("__spec__"), "_initializing", False):
                continue
            self._seen.add(name)
            if self._for_others and content:
                holder = _Holder(content, name, content, is_table=False)
                self._holders.setdefault(id(content), holder)
            elif content and not name.startswith(_EXPERIMENTAL):
                self._modules.append(_Holder(content, name, content, is_table=False))
            for key, value in content.copy().items():
                kind = type(value)
                if kind in _TABLES:
                    self._note(value, f"{name}.{key}")
                elif kind in primitives:
                    self._add(value, f"the primitive {value.name}", vars(value))

    def _note(self, table: Any, name: str) -> None:
        """Takes note of a table with rules, or one that may get some.

        The nodes of trees are a part of their classes, which count where they are reached.
        """
        if table is attribute("jax._src.tree_util", "_registry"):
            return
        if not table or _has_rules(table):
            self._add(table, name, table)
        elif isinstance(table, dict) and len(table) <= _MOST_TABLES_INSIDE:
            for key, inner in table.items():
                if type(inner) in _TABLES and inner and _has_rules(inner):
                    self._add(inner, f"{name}[{key!r:.40}]", inner)

    def _add(self, owner: Any, name: str, content: Any) -> None:
        is_table = owner is content
        self._holders.setdefault(id(owner), _Holder(owner, name, content, is_table=is_table))

    def _look_at_names(self, module: _Holder, seen: set[int]) -> None:
        """Finds foreign functions under the names of a module; `seen`: ids of what is none."""
        module.last = now = module.content.copy()
        module.found = []
        for key, value in now.items():
            if _PARTS.get(type(value)) is _no_parts or id(value) in seen:
                continue
            if type(value) is list:  # such as listeners of `jax.monitoring`: no program has them
                continue
            code = self._foreign_code(value)
            if not code:
                seen.add(id(value))
            elif key in _names_in_code(module.name) and not _is_gone(module.content, key):
                self._note_change(module, key, code)  # else jax does not know the name

    def _look(self, holder: _Holder, *, is_new: bool) -> None:
        """Finds what does not belong in a holder; `is_new`: an import may have changed it.

        Of what was there before it may have replaced something by code of its own alone.
        """
        is_set = isinstance(holder.content, set)
        now = dict.fromkeys(holder.content, True) if is_set else dict(holder.content.items())
        holder.found = []
        is_first = holder.last is None
        for key in holder.own.keys() - now.keys():
            before = holder.own[key]
            is_lost = _is_rule(holder, key, before) and not _is_of_jaxd(before)
            if is_lost and self._counts(holder, key):
                self._note_change(holder, key, "")
            else:
                del holder.own[key]
        for key, value in now.items():
            before = holder.own.get(key, _MISSING)
            if before is value:
                continue
            code = self._foreign_code(value)
            is_fine = (
                is_first
                or (is_new and (before is _MISSING or self._is_of_import(value)))
                or _is_of_jaxd(value)
                or _is_of_jaxd(before)
                or not _is_rule(holder, key, before)
            )
            if (code or not is_fine) and self._counts(holder, key):
                self._note_change(holder, key, code)
            else:
                holder.own[key] = value
        holder.last = set(now) if is_set else now

    def _counts(self, holder: _Holder, key: Any) -> bool:
        """Whether it may decide about what others compute.

        Of a process that only asks for programs, rules of jax alone do: who uses another library
        whose primitive has a rule of the user's reaches that primitive, and is refused for it.
        """
        if not holder.is_table:
            return key not in _SHOWN
        if not self._for_others and _is_seldom_used(holder, key):
            return False
        if isinstance(key, type):
            return importable_name(key) is not None and not is_local_module(key.__module__)
        return kind_of(key) == "primitive" and name_of_jax_object(key) is not None

    def _note_change(self, holder: _Holder, key: Any, code: str) -> None:
        before = holder.own.get(key, _MISSING)
        name = getattr(key, "name", None) or getattr(key, "__qualname__", None) or key
        where = f"{holder.name}[{name}]" if holder.is_table else f"{holder.name}.{name}"
        holder.found.append(Change(holder.owner, key, before, where, code))

    def _foreign_code(self, value: Any, depth: int = 0) -> str:
        """The function in a rule, or in its parts, that is not of an installed module; or none."""
        kind = type(value)
        parts = _PARTS.get(kind)
        if parts is None:
            parts = _PARTS[kind] = _parts_of(kind)
        if parts is _no_parts:
            return ""
        if kind is FunctionType:
            if not self._is_installed(value.__globals__):
                return str(value.__qualname__)
            if value.__closure__ is None and not value.__dict__:
                return ""
        for part in parts(value) if depth < _DEEPEST else ():
            found = self._foreign_code(part, depth + 1)
            if found:
                return found
        return ""

    def _is_installed(self, content: dict[str, Any]) -> bool:
        """Whether functions with these globals are of an installed module."""
        if id(content) in self._installed:
            return True
        top = str(content.get("__name__")).partition(".")[0]
        if top not in _TRUSTED and self._is_foreign(content):
            return False
        self._installed[id(content)] = content
        return True

    def _is_of_import(self, value: Any, depth: int = 0) -> bool:
        """Whether a rule has some code of a module that was loaded since the last look."""
        if getattr(value, "__module__", None) in self._new:
            return True
        parts = _PARTS.get(type(value)) or _parts_of(type(value))
        inner = parts(value) if depth < _DEEPEST else ()
        return any(self._is_of_import(part, depth + 1) for part in inner)


def _no_parts(_: Any) -> Iterable[Any]:
    return ()


def _of_function(function: FunctionType) -> list[Any]:
    parts = [_content(cell) for cell in function.__closure__ or ()]
    return [*parts, vars(function)["__wrapped__"]] if "__wrapped__" in vars(function) else parts


_PARTS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {
    FunctionType: _of_function,
    functools.partial: lambda value: (value.func, *value.args, *value.keywords.values()),
    property: lambda value: (value.fget, value.fset),
    **dict.fromkeys((MethodType, staticmethod, classmethod), lambda value: (value.__func__,)),
    **dict.fromkeys((tuple, list), lambda value: value[:_MOST_ITEMS]),
}
"""What a rule is made of, by its type."""


def _parts_of(kind: type) -> Callable[[Any], Iterable[Any]]:
    """As `_PARTS`, for another type: one of jax's own that holds functions, or one of a tuple."""
    if issubclass(kind, tuple):
        return _PARTS[tuple]
    if not is_of_jax(kind) or issubclass(kind, type | attribute(*_PRIMITIVE)):
        return _no_parts
    names = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]

    def parts(value: Any) -> list[Any]:
        slots = [getattr(value, name, None) for name in names]
        return [*slots, *getattr(value, "__dict__", {}).values()]

    return parts


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _differ(now: Any, before: Any) -> bool:
    """Whether a mapping or set may have changed: what is in it is compared by identity first."""
    try:
        return bool(now != before)
    except Exception:  # noqa: BLE001  two arrays, or another thread adds something
        return True


def _has_rules(table: Any) -> bool:
    """Whether a table has rules: by primitive, or by the type of what they handle."""
    first = next(iter(table))
    if not isinstance(first, type):
        return kind_of(first) == "primitive"
    return isinstance(table, dict) and callable(table[first])


def _is_of_jaxd(value: Any) -> bool:
    """Whether jaxd itself has put it there, as around callbacks, the cache on disk and profiles."""
    of = value.func if type(value) is functools.partial else value
    module = getattr(of, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in OWN_PACKAGES


def _is_rule(holder: _Holder, key: Any, before: Any) -> bool:
    """Whether something that is there now stands in the place of a rule, or is a new one.

    What modules, classes and primitives keep for themselves, such as counters, changes always.
    """
    if holder.is_table:
        return before is not _MISSING or kind_of(key) == "primitive"
    return callable(before) or isinstance(before, property | staticmethod | classmethod)


def _is_seldom_used(holder: _Holder, key: Any) -> bool:
    """Whether few functions meet it: of another library than jax, or of `jax.experimental`.

    Or whether jax has nothing there, so that a server cannot trace what needs it.
    """
    if holder.name.startswith(_EXPERIMENTAL):
        return True
    if isinstance(key, type):
        return key.__module__.partition(".")[0] not in _TRUSTED
    if key.name == "stop_gradient" and holder.name.endswith(".primitive_transposes"):
        return True
    name = name_of_jax_object(key)
    return name is None or name[0].partition(".")[0] != _PACKAGE


def _traced_classes() -> Iterator[type]:
    """The classes in `_BASES`, and all that derive from them."""
    left: list[Any] = [attribute(*place) for place in _BASES]
    seen: set[int] = set()
    while left:
        cls = left.pop()
        if isinstance(cls, type) and id(cls) not in seen:
            seen.add(id(cls))
            yield cls
            left += type.__subclasses__(cls)
