"""What libraries that require jax keep, and no function reaches: contexts, and settings.

Both change what is traced. A walk does not enter installed code, so it finds neither.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import Context, ContextVar
from functools import cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

from jaxd.interop.jax_runtime import is_in_trace
from jaxd_protocol.base.process import reset_after_fork, start_thread
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.code.assignments import (
    code_of,
    initial_values,
    names_of_contexts,
    names_of_settings,
)
from jaxd_protocol.packages.installed import (
    OWN_PACKAGES,
    SERVER_PACKAGES,
    content_of,
    is_local_module,
)


class _Modules:
    """The modules of libraries that require jax, each once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._count = 0

    @property
    def may_be_new(self) -> bool:
        """Whether modules were loaded since the last look."""
        return len(sys.modules) != self._count

    def new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and content of those that were loaded since the last look."""
        self._count = len(sys.modules)
        for name in sys.modules.keys() - self._seen:
            content = content_of(name) if _is_on_jax(name.partition(".")[0]) else {}
            if not getattr(content.get("__spec__"), "_initializing", False):
                self._seen.add(name)
                yield name, content


_OTHERS: Final = SERVER_PACKAGES | OWN_PACKAGES | sys.stdlib_module_names


@cache
def _is_on_jax(package: str) -> bool:
    """Whether a package is a library that requires jax."""
    from jaxd_protocol.packages.distributions import requirements

    is_other = package in _OTHERS or is_local_module(package)
    return not is_other and "jax" in requirements(package)


# contexts -----------------------------------------------------------------------------------------

_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES: Final = (list, tuple, deque)
_DEEPEST: Final = 4


class _Place(NamedTuple):
    """Something that has another content in a context.

    Attributes:
        name: of the module, and in it.
        holder: a `threading.local`, a `ContextVar`, or a `_Global`.
        first: what it holds where nobody has set anything.
    """

    name: str
    holder: Any
    first: Mapping[str, Any]


class _Global(NamedTuple):
    """A global of a module that its context managers change.

    Attributes:
        content: of the module.
        name: in it.
        first: what it holds outside of them.
    """

    content: Mapping[str, Any]
    name: str
    first: Any


class LibraryContexts:
    """Looks whether this thread is in a context of a library that requires jax. Thread-safe.

    That is where a `threading.local` or `ContextVar` of its modules holds something that it does
    not hold in a new thread, or where a global that their context managers change is not as the
    module's code makes it. ``with flax.linen.intercept_methods(f):`` and the handlers of numpyro
    change what is traced, and no function reaches that, so no walk finds it. Those of jax itself
    are settings, and part of each key.

    Attributes:
        were_found: whether it was in one at any time.
    """

    def __init__(self) -> None:
        self.were_found = False
        self._places: list[_Place] = []
        self._modules = _Modules()
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()  # guards what is found

    def check(self) -> None:
        """Returns where the thread is in none, or only within a trace of jax, which is in it.

        Raises:
            PackingError: when it is in one; the message names it.
        """
        if is_in_trace():
            return
        self._look()
        for place in self._places:
            now = _content(place.holder)
            if not _are_same(now, place.first):
                self.were_found = True
                raise PackingError(
                    f"this thread is in a context of a library: {place.name} holds something that "
                    "it does not hold outside of one, as on a server. That may change what is "
                    "traced. Enter it in the function, or run the function here with JAXD_INLINE=1."
                )

    def _look(self) -> None:
        with self._lock:
            if self._modules.may_be_new:
                self._places += _with_first(list(self._new_holders()))

    def _new_holders(self) -> Iterator[tuple[str, Any]]:
        """Those in modules that were loaded since the last look, with their names."""
        for name, content in self._modules.new():
            for key, value in content.copy().items():
                cls = type(value)
                is_one = cls is ContextVar or threading.local in cls.__mro__
                if is_one and self._is_new(value):
                    yield f"{name}.{key}", value
            changed = names_of_contexts(content)
            for key, first in initial_values(content, changed).items() if changed else ():
                yield f"{name}.{key}", _Global(content, key, first)

    def _is_new(self, holder: Any) -> bool:
        return all(holder is not each.holder for each in self._places)


def _with_first(found: list[tuple[str, Any]]) -> list[_Place]:
    """The same, with what they hold in a new thread and an empty context."""
    places: list[_Place] = []

    def look() -> None:
        for name, holder in found:
            first = {"": holder.first} if type(holder) is _Global else _content(holder)
            places.append(_Place(name, holder, first))

    if found:
        thread = threading.Thread(target=Context().run, args=(look,), name="jaxd-contexts")
        start_thread(thread)
        thread.join()
    return places


def _content(holder: Any) -> Mapping[str, Any]:
    """What it holds in this thread, but for caches, and what Python notes: `__orig_class__`."""
    if type(holder) is ContextVar:
        return {"": holder.get(None)}
    if type(holder) is _Global:
        return {"": holder.content.get(holder.name)}
    named = vars(holder).items()
    return {name: each for name, each in named if not (name[:2] == "__" or "cache" in name)}


def _is_same(now: Any, first: Any, depth: int = 0) -> bool:
    """Whether two contents may mean the same; what is empty is as if it were not there."""
    if now is first or depth > _DEEPEST:
        return True
    if _is_nothing(now) or _is_nothing(first):
        return _is_nothing(now) and _is_nothing(first)
    return type(now) is type(first) and _is_same_content(now, first, depth)


def _is_same_content(now: Any, first: Any, depth: int) -> bool:
    """See `_is_same`; both are of one type."""
    if isinstance(now, (*_ATOMS, set, frozenset)):
        return bool(now == first)
    if isinstance(now, FunctionType):
        return now.__code__ is first.__code__
    if isinstance(now, _SEQUENCES):
        pairs = zip(now, first, strict=False)
        return len(now) == len(first) and all(_is_same(*pair, depth + 1) for pair in pairs)
    if not isinstance(now, Mapping):
        now, first = getattr(now, "__dict__", {}), getattr(first, "__dict__", {})
    return _are_same(now, first, depth + 1)


def _are_same(now: Mapping[Any, Any], first: Mapping[Any, Any], depth: int = 0) -> bool:
    return all(_is_same(now.get(each), first.get(each), depth) for each in {*now} | {*first})


def _is_nothing(value: Any) -> bool:
    if isinstance(value, _ATOMS):
        return not value
    return isinstance(value, (*_SEQUENCES, Mapping, set, frozenset)) and len(value) == 0


library_contexts: Final = LibraryContexts()
"""Those that threads of this process are in."""

# settings -----------------------------------------------------------------------------------------

Settings = tuple[tuple[str, str], ...]
"""Names and contents, sorted by name."""

_SCALARS: Final = (bool, int, float, str, bytes, type(None))

_HARMLESS: Final = frozenset(
    [
        *("__future__", "abc", "collections", "collections.abc", "contextlib", "dataclasses"),
        *("enum", "functools", "itertools", "math", "operator", "os", "re", "string"),
        *("threading", "types", "typing", "typing_extensions", "warnings"),
    ]
)
"""What a module may import that is run once more to see what it holds at first."""

_NO_ENVIRONMENT: Final = SimpleNamespace(
    environ={}, getenv=lambda _name, default=None: default, path=os.path
)


class LibrarySettings:
    """Looks which settings of libraries that require jax are not as in a fresh process.

    `flax.config.update(…)`, `numpyro.enable_validation(…)`, the variable `EQX_ON_ERROR`, which
    equinox reads when it is imported. A setting is a number, a text or a truth value

    - in a module that imports nothing but a few modules of Python's own, or in an object of such a
      module's class, where that module makes another one without variables of the environment;
    - that a function of a library puts into a global of its module or an attribute of a class,
      where the module's code puts a constant there at first.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._modules = _Modules()
        self._firsts: list[_First] = []
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()  # guards what is found

    def changed(self) -> Settings:
        """Those that differ, as they are now."""
        with self._lock:
            if self._modules.may_be_new:
                for each in self._modules.new():
                    self._firsts += [*_made_first(*each), *_set_first(*each)]
        found = {
            name: text
            for prefix, content, first in self._firsts
            for name, text in _differences(prefix, content, first)
        }
        return tuple(sorted(found.items()))


_First = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""A name, what holds settings, and what that holds at first."""


def _made_first(name: str, content: Mapping[str, Any]) -> Iterator[_First]:
    """That of a module which is made once more."""
    if _stands_alone(name, content):
        first = _made_again(name, content)
        kept = {key: each for key, each in first.items() if _may_be_setting(key, each, name)}
        if kept:
            yield name, content, kept


def _set_first(name: str, content: Mapping[str, Any]) -> Iterator[_First]:
    """Those that functions of a module set, in it and in its classes."""
    for cls, names in names_of_settings(content).items():
        first = initial_values(content, names, cls)
        kept = {key: each for key, each in first.items() if type(each) in (bool, float, str)}
        if kept:  # what is None or 0 at first is filled later, or counts
            place, held = (f"{name}.{cls}", vars(content[cls])) if cls else (name, content)
            yield place, held, kept


def _may_be_setting(key: str, value: Any, module: str) -> bool:
    """Whether a global is a scalar, or may hold some."""
    cls = type(value)
    return key[:2] != "__" and (cls in (*_SCALARS, dict) or cls.__module__ == module)


def _stands_alone(name: str, content: Mapping[str, Any]) -> bool:
    """Whether a module has settings, and nothing of other libraries, as far as is seen."""
    items = list(content.items())
    if not all(_is_own_or_pythons(value, name) for _, value in items):
        return False
    return any(_may_be_setting(key, value, name) for key, value in items)


def _is_own_or_pythons(value: Any, module: str) -> bool:
    cls = type(value)
    home = cls.__module__
    if cls is ModuleType:
        home = value.__name__
    elif cls is type or cls is FunctionType:
        home = value.__module__
    return home == module or str(home).partition(".")[0] in _TYPES_OF_PYTHON


_TYPES_OF_PYTHON: Final = frozenset({*sys.stdlib_module_names, "typing_extensions"})


class _Refused(Exception):
    """The module would do more than to make settings."""


def _import(name: str, *how: Any) -> Any:
    if any(how[3:]) or name not in _HARMLESS:  # the last one is the level
        raise _Refused(name)
    return _NO_ENVIRONMENT if name == "os" else __import__(name, *how)


_NAMES: Final = {
    **{name: value for name, value in vars(builtins).items() if name not in ("open", "input")},
    "__import__": _import,
}


def _made_again(name: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a module has in it at first, without an environment; nothing where that is unknown."""
    code = code_of(content.get("__spec__"), name)
    if code is None:
        return {}
    made = {"__name__": name, "__builtins__": _NAMES, "__package__": content.get("__package__")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, made)  # noqa: S102  the library's own code
    except Exception:  # noqa: BLE001  such as `_Refused`
        return {}
    return made


def _differences(
    path: str, now: Mapping[Any, Any], first: Mapping[Any, Any], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Names and contents of the scalars that are others now; what came later is none."""
    for key, one in first.items():
        other = now.get(key, one)
        if other is not one and isinstance(key, str) and key[:2] != "__":
            yield from _difference(f"{path}.{key}", other, one, depth)


def _difference(path: str, now: Any, first: Any, depth: int) -> Iterator[tuple[str, str]]:
    if type(first) in _SCALARS and type(now) in _SCALARS:
        yield from [(path, repr(now))] if _is_set(first, now) else []
    elif depth < _DEEPEST and type(first) is type(now) is dict:
        yield from _differences(path, now, first, depth + 1)
    elif depth < _DEEPEST and _is_remade(first, now):
        yield from _differences(path, vars(now), vars(first), depth + 1)


def _is_set(first: Any, now: Any) -> bool:
    """Whether a scalar is another one; an integer that is another integer may count something."""
    return type(first) is not type(now) or (first != now and type(first) is not int)


def _is_remade(one: Any, other: Any) -> bool:
    """Whether both are of a class that the code of a module has made twice."""
    first, second = type(one), type(other)
    same = (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)
    return same and hasattr(one, "__dict__") and hasattr(other, "__dict__")


library_settings: Final = LibrarySettings()
"""Those of this process."""
