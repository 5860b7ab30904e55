"""What is loaded in a victim: classes, attributes that their code reads, callables, own objects.

The hostile end is told all of it, as it could find out from the versions of what is installed. How
likely something is tried goes by what its code reaches, never by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

REACHING: Final = frozenset(
    "open remove unlink rmtree rmdir system popen Popen run call check_call exec eval compile load"  # noqa: SIM905
    " loads import_module __import__ memmap mmap connect write save tofile dump symlink rename"
    " replace mkdir makedirs chmod chown truncate spawn fork kill execv loadtxt savetxt fromfile"
    " find_library CDLL LoadLibrary read_text write_text write_bytes format format_map"
    " getattr attrgetter methodcaller".split()
)
"""Names in code that may reach outside of the process, or from an object to what hangs there."""

_AUTOMATIC: Final = (  # noqa: SIM905
    "__del__ __repr__ __str__ __len__ __array__ __getattr__ __getattribute__ __iter__ __next__"
    " __eq__ __ne__ __hash__ __bool__ __format__ __array_interface__ __array_struct__"
    " __array_ufunc__ __array_function__ __jax_array__ __float__ __int__ __index__ __call__"
    " __getitem__ __contains__ __enter__ __exit__ __reduce__ __reduce_ex__ __getstate__ __copy__"
    " __deepcopy__ __lt__ __add__ __instancecheck__ __set__ __get__ __fspath__ __dir__ __sizeof__"
    " __setattr__ __delattr__ __dlpack__ tree_flatten shape dtype ndim aval __traceback__ args"
).split()
"""Methods and properties that run without being named: when an object is used or dropped."""

_DEPTH: Final = 3
_MAX_NAMES: Final = 32


def inventory(own: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, for JSON.

    Args:
        own: the victim's persistent functions by name.
    """
    classes, callables, exceptions, warned = [], [], [], []
    for module, name, value in _loaded():
        if isinstance(value, type):
            if (value.__module__, value.__qualname__) != (module, name):
                continue
            if issubclass(value, Warning):
                warned.append([module, name])
            if issubclass(value, BaseException):
                exceptions.append([module, name, _fields(value)])
            classes.append(_class(module, name, value))
        if callable(value):
            callables.append([module, name, 12 if _reaches(value) else 1])
    return {
        "classes": classes,
        "callables": callables,
        "exceptions": exceptions,
        "warnings": warned,
        "files": _files(),
        "modules": sorted(sys.modules)[:4000],
        "methods": _methods(),
        "cells": sorted(_cells(own.values())),
        "own": {name: objects_of(function) for name, function in own.items()},
    }


def _loaded() -> Iterator[tuple[str, str, Any]]:
    modules: dict[str, Any] = dict(sys.modules)
    for module, found in sorted(modules.items()):
        if not isinstance(found, ModuleType) or module.startswith(("tests", "_pytest", "pytest")):
            continue
        for name, value in sorted(vars(found).items(), key=lambda each: str(each[0])):
            if type(name) is str and not name.startswith("__"):
                yield module, name, value


def _class(module: str, name: str, cls: type) -> dict[str, Any]:
    groups, danger = [], 0
    for method in _AUTOMATIC:
        code = _code_of(_raw(cls, method))
        if code is None:
            continue
        names = _names(cls, code)
        reaches = bool(REACHING & names.keys())
        danger += (8 if method == "__del__" else 2) if reaches else 0
        groups.append([9 if reaches else 1, list(names)[:_MAX_NAMES]])
    fields = getattr(cls, "_fields", None)
    return {
        "name": [module, name],
        "weight": 1 + 4 * min(danger, 40),
        "groups": groups,
        "fields": list(fields) if issubclass(cls, tuple) and type(fields) is tuple else None,
        "is_node": _is_node(cls),
        "is_dataclass": hasattr(cls, "__dataclass_fields__"),
    }


def _fields(cls: type) -> list[str]:
    code = _code_of(_raw(cls, "__str__")) or _code_of(_raw(cls, "__init__"))
    return list(code.co_names)[:8] if code is not None else []


def _raw(cls: type, name: str) -> Any:
    for base in cls.__mro__[:-1]:
        if name in vars(base):
            return vars(base)[name]
    return None


def _code_of(value: Any) -> CodeType | None:
    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names(cls: type, code: CodeType, depth: int = _DEPTH) -> dict[str, None]:
    """The names in code, and in that of the methods that it names, the nearest first."""
    found = dict.fromkeys(_in(code))
    for name in list(found) if depth else ():
        inner = _code_of(_raw(cls, name))
        if inner is not None:
            found |= _names(cls, inner, depth - 1)
    return found


@cache
def _in(code: CodeType) -> tuple[str, ...]:
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(name for each in nested for name in _in(each))]))


def _reaches(value: Any) -> bool:
    name = getattr(value, "__name__", None)
    if type(name) is str and name in REACHING:
        return True
    code = _code_of(value)
    if code is None and isinstance(value, type):
        code = _code_of(_raw(value, "__init__"))
    if code is None:
        return False
    names = set(_in(code))
    around: Any = getattr(value, "__globals__", None)
    for name in list(names) if type(around) is dict else ():
        if isinstance(around.get(name), FunctionType):
            names |= set(_in(around[name].__code__))
    return bool(REACHING & names)


def _is_node(cls: type) -> bool:
    jax = sys.modules.get("jax")
    if jax is None:
        return cls.__module__ in ("builtins", "collections")
    from jaxd.interop.jax_registry import is_registered

    try:
        return is_registered(cls)
    except Exception:  # noqa: BLE001  some metaclasses compare in their own way
        return False


def _files() -> list[str]:
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(path for path in found if type(path) is str and path.endswith(".py"))[:200]


def _methods() -> list[list[str]]:
    """The methods of what may be sent as data: of arrays, text, numbers, containers."""
    import numpy as np

    kinds: list[type] = [np.ndarray, np.float32, str, bytes, list, dict, tuple, float, set]
    if "jax" in sys.modules:
        kinds.append(type(sys.modules["jax"].numpy.zeros(1)))
    return [[name for name in dir(kind) if callable(getattr(kind, name, None))] for kind in kinds]


def objects_of(function: Any) -> dict[str, Any]:
    """What a server knows of a persistent function that it has the code of."""
    from jaxd_protocol.fingerprint import content_id
    from jaxd_protocol.pytree.references import function_mark

    snapshot = function._binding.snapshots.spec(()).snapshot
    reach = snapshot._walk_result.reach
    objects, live = reach.numbered, reach.callback_only
    classes = []
    for value in [*objects, *snapshot.reader._local_objects._classes.values()]:
        for cls in value if isinstance(value, tuple) else (value,):
            if isinstance(cls, type):
                content = _or_empty(lambda cls=cls: content_id(cls))
                classes.append([cls.__module__, cls.__qualname__, content.hex()])
    snapshot.reader.find_code(b"")
    return {
        "code": [each.hex() for each in snapshot.reader._local_objects._code],
        "mark": function_mark(snapshot.fingerprint).hex(),
        "fingerprint": snapshot.fingerprint.hex(),
        "objects": [_object(value) for value in objects],
        "live": [_object(value) for value in live],
        "calls_back": bool(live) or bool(snapshot.takes_arguments),
        "classes": classes,
        "contents": [each.hex() for each in snapshot.reader._local_objects._contents],
    }


def _cells(functions: Iterable[Any]) -> set[str]:
    """The names of variables that inner functions of these close over."""
    codes = [function.__wrapped__.__code__ for function in functions]
    found = set[str]()
    while codes:
        code = codes.pop()
        found |= set(code.co_freevars)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _or_empty(ask: Any) -> bytes:
    try:
        return bytes(ask())
    except Exception:  # noqa: BLE001  classes without content
        return b""


def _object(value: Any) -> dict[str, Any]:
    code = getattr(value, "__code__", None)
    return {
        "codes": _codes(code) if isinstance(value, FunctionType) and code else [],
        "cells": len(getattr(value, "__closure__", None) or ()),
        "names": [name for name in dir(type(value)) if not name.startswith("__")][:40],
    }


def _codes(code: CodeType, path: tuple[int, ...] = ()) -> list[Any]:
    """The way to each code inside, and how many cells a function of it needs."""
    found: list[Any] = [[path, len(code.co_freevars)]]
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    for index, each in enumerate(nested):
        found += _codes(each, (*path, index))
    return found
