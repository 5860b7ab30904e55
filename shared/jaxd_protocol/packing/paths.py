"""How one object is reached from another, for an error message: `step → CONFIG['stream']`."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from jaxd_protocol.fingerprint.bytecode import facts_of

__all__ = ["path_to"]

_MAX_OBJECTS: Final = 200_000

_ATOMS: Final = (bool, bytes, complex, float, int, str, type(None))


def path_to(root: Any, target: Any) -> str:
    """The shortest path; the type of the target where none is found."""
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
            yield f".{name}", getattr(value, name, None)
    if not isinstance(value, type):
        yield ".__class__", type(value)
