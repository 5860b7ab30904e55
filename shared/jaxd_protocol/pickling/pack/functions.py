"""Functions to bytes."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import JaxdError, PackingError
from jaxd_protocol.fingerprint import one_moment
from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.data_model import ReachedObjects
from jaxd_protocol.pickling.pack.function_parts import is_local_function
from jaxd_protocol.pickling.pack.modules import archive_arguments
from jaxd_protocol.pickling.pack.pickler import PickleBox, Pickler
from jaxd_protocol.pickling.unpack.archives import add_archive
from jaxd_protocol.pickling.unpack.private_modules import add_sources, import_submodules

_MIN_DEEP_CHAIN: Final = 20


class Packed(bytes):
    """A packed object.

    Attributes:
        classes: `(module, qualified name)` to class, for each class of the user's own that was
            reached, so that results can be instances of it.
        objects: the same classes, and callables of the user's own that arguments held, by content
            id.
        installed: callables and classes of installed packages that arguments held, by the name
            under which they were packed.
        told_apart: objects that arguments held, of which the other end gets copies.
    """

    told_apart: tuple[Any, ...] = ()
    classes: dict[tuple[str, str], type]
    objects: dict[bytes, Any]
    installed: dict[tuple[str, str], Any]


def pack_function(function: Any, what: str, reach: ReachedObjects) -> Packed:
    """A function, class or module, and all that it reaches, as bytes.

    Args:
        function: what the server is to have.
        what: its name in an error, such as ``function 'step'``.
        reach: of a finished walk over `function`.

    Raises:
        PackingError: when it reaches an object that cannot be sent, which the message names.
    """
    pickler = Pickler(reach)
    body = _LazyList(_body(pickler, function, reach))
    with one_moment():
        return dump(pickler, (pickler.blob, body, function), function, what)


class _LazyList:
    """A list whose items are produced while it is written."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __reduce__(self) -> Any:
        return list, (), None, self._items


def _body(pickler: Pickler, function: Any, reach: ReachedObjects) -> Iterator[Any]:
    """What is written ahead of the function, so that all it refers to exists already."""
    if reach.archives is not None:
        archive = archive_arguments(reach.archives.archive)
        yield PickleBox(reach, lambda: (add_archive, (pickler.blob, *archive)))
    if reach.sources:
        sources = dict(sorted(reach.sources.items()))
        yield PickleBox(reach, lambda: (add_sources, (pickler.blob, sources)))
    if reach.submodules:
        names = tuple(sorted(reach.submodules))
        yield PickleBox(reach, lambda: (import_submodules, (names,)))
    modules = [reach.imports[name] for name in sorted(reach.imports)]
    for value in (*_deepest_first(reach), *_carrying_modules(reach), function, *modules):
        yield value
        yield None  # see `deferred_completions`
        yield from pickler.deferred_completions()


def _deepest_first(reach: ReachedObjects) -> list[FunctionType]:
    """The helpers of a long chain from its end, so that they are not nested."""
    objects = reversed([*reach.numbered, *reach.objects])
    found = [each for each in objects if type(each) is FunctionType]
    return list(filter(is_local_function, found)) if len(found) > _MIN_DEEP_CHAIN else []


def _carrying_modules(reach: ReachedObjects) -> list[ModuleType]:
    """Installed modules of which something is carried, and the packages that they are in."""
    names = {
        ".".join(name.split(".")[: count + 1])
        for name in reach.carried
        for count in range(name.count(".") + 1)
    }
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def dump(pickler: Pickler, value: Any, root: Any, what: str) -> Packed:
    """A value as bytes; an error names the object that cannot be written.

    Args:
        pickler: writes it.
        value: what is written.
        root: where the path in an error begins.
        what: the name of the root in an error.

    Raises:
        PackingError: when it cannot be written.
        JaxdError: as jaxd's own objects raise it.
    """
    try:
        pickler.dump(value)
        packed = Packed(pickler.file.getvalue())
        classes = pickler.classes
        packed.classes = {(name.module, name.qualname): cls for name, cls in classes.items()}
        packed.objects = pickler.objects | {name.content: cls for name, cls in classes.items()}
        packed.installed = pickler.installed
    except RecursionError as error:
        raise PackingError(
            f"{what} reaches a chain of objects that is too deep to pack. Break the chain, or "
            "raise sys.setrecursionlimit."
        ) from error
    except JaxdError as error:
        if type(error) is not PackingError:
            raise
        where = object_path(root, pickler.last)
        raise PackingError(f"{what} cannot travel to the server: {where}: {error}") from error
    except Exception as error:
        culprit = pickler.last
        raise PackingError(
            f"{what} cannot travel to the server: {object_path(root, culprit)} is a "
            f"{type(culprit).__qualname__}: {error}. Look for an open file, lock, generator or "
            "connection among its globals, closure and defaults; make it inside the function, or "
            "pass what it yields as an argument. What a module of your package makes when it is "
            "imported need not travel with persistent_call(ship='source')."
        ) from error
    return packed


_MAX_OBJECTS: Final = 200_000

_ATOMS: Final = (bool, bytes, complex, float, int, str, type(None))


def object_path(root: Any, target: Any) -> str:
    """The shortest path from the root to the target, in words; a phrase where none is found."""
    start = getattr(root, "__qualname__", None) or type(root).__qualname__
    queue = deque([(root, start)])
    seen = {id(root): root}
    while queue and len(seen) < _MAX_OBJECTS:
        value, path = queue.popleft()
        if value is target:
            return path
        for step, child in _children(value):
            if type(child) not in _ATOMS and id(child) not in seen:
                seen[id(child)] = child
                queue.append((child, path + step))
    return f"something that {start} reaches"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, MethodType):
        yield from (("", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif not isinstance(value, ModuleType):
        yield from _attributes(value)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    namespace = function.__globals__
    for name in sorted(facts_of(function.__code__).names):
        value = namespace.get(name)
        if isinstance(value, ModuleType):
            yield from ((f" → {name}.{each}", item) for each, item in vars(value).items())
        yield f" → {name}", value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            yield f" → {name}", cell.cell_contents
    yield " → its defaults", function.__defaults__
    yield " → its defaults", function.__kwdefaults__
    yield "", vars(function)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    for name, attribute in dict(attributes or {}).items():
        yield f".{name}", getattr(attribute, "__func__", attribute)
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            with suppress(AttributeError, TypeError):  # without a value, or written in C
                yield f".{name}", getattr(value, name)
    if not isinstance(value, type):
        yield ".__class__", type(value)
