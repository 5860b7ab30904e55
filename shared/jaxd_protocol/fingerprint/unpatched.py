"""Whether installed modules, functions and classes are unpatched.

Tests and notebooks patch installed packages (``optax.sgd = mine``). There is no record of what a
module was when it was imported, so an attribute is unpatched only where its value shows where it
comes from. Where it is not, the value itself counts and travels along: harmless when it was the
module's own. A function or class of the module that was changed itself is refused.
"""

from __future__ import annotations

import builtins
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import (
    CellType,
    CodeType,
    FunctionType,
    GenericAlias,
    ModuleType,
    SimpleNamespace,
    UnionType,
)
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.canonical_bytes import ATOMS, is_same
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import is_local_file

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.code.assignments import Assignments, Expression

_CONSTANTS: Final = {
    "pi": math.pi,
    "e": math.e,
    "tau": math.tau,
    "inf": math.inf,
    "euler_gamma": 0.5772156649015329,
    "newaxis": None,
    "nan": math.nan,
}

_LIBRARY_OF: Final = {"jax": "jaxlib"}
"""Packages whose machine code is a package of its own."""

_NUMPYS_OWN: Final = {"bool_": "bool"}
"""What numpy calls by another name than that under which it has it, and jax after it."""

_MAX_ALIASES: Final = 10
"""How often a library may rename what it defines."""

_MAX_PLAIN_ITEMS: Final = 1000
"""Items of a container of plain data that is still looked at."""


def is_unpatched(
    module: ModuleType, name: str, value: Any, is_local: Callable[[str], bool]
) -> bool:
    """Whether `value`, found as `name` in an installed module, certainly belongs there.

    That is where it is what its own name says, or the module's code gives it this name, and it
    belongs to where that code takes it from: a process that has not imported the library counts
    nothing for it, and must have the same key.

    Args:
        module: the installed module.
        name: of the attribute.
        value: what is there now.
        is_local: whether a module is the user's own.
    """
    for _ in range(_MAX_ALIASES):
        if _is_own(module, name, value, is_local):
            return True
        if type(value) in ATOMS or is_local(module.__name__):
            return False
        if _is_made(module, name, value, is_local):
            return True
        origin = _origin(module, name)
        if origin is None or vars(origin[0]).get(origin[1]) is not value:
            return False
        module, name = origin
    return False


def _is_own(module: ModuleType, name: str, value: Any, is_local: Callable[[str], bool]) -> bool:
    """Whether the value itself shows that it belongs there."""
    if type(value) in ATOMS:
        return _is_known_constant(name, value)
    if isinstance(value, ModuleType):
        return True
    is_made_at_run_time = isinstance(value, functools.partial | tuple)
    if is_made_at_run_time or is_plain_data(value) or is_array(value):
        return False
    functions = (layer for layer in _unwrapped(value) if isinstance(layer, FunctionType))
    if any(is_local(layer.__globals__.get("__name__") or "") for layer in functions):
        return False
    own = getattr(value, "__name__", None)
    home = getattr(value, "__module__", None)
    if isinstance(own, str) and isinstance(home, str):
        same = own.rpartition(".")[2] in (name, _NUMPYS_OWN.get(name)) and _is_found(module, value)
        homes = _top(module), _LIBRARY_OF.get(_top(module))
        is_named = same and home.partition(".")[0].lstrip("_") in homes
        return is_named or _is_closed_over(module, name, value)
    kind = str(type(value).__module__).partition(".")[0].lstrip("_")
    if kind == _LIBRARY_OF.get(_top(module)):
        return _is_decorated(module, name, getattr(value, "__wrapped__", None))
    # an object: of a class of the module's own package, or it was patched in
    return kind in (_top(module), "builtins")


def _is_decorated(module: ModuleType, name: str, inner: Any) -> bool:
    """Whether what a decorator of the library has wrapped is the module's function of that name."""
    is_there = isinstance(inner, FunctionType) and inner.__globals__ is vars(module)
    return is_there and inner.__name__ == name


def _is_found(module: ModuleType, value: Any) -> bool:
    """Whether its own name leads to it, or it is a function that the module's code defines."""
    if importable_name(value) is not None:
        return True
    return isinstance(value, FunctionType) and value.__globals__ is vars(module)


def _is_closed_over(module: ModuleType, name: str, value: Any) -> bool:
    """Whether it is what a decorator of the library, which keeps no name, has made of that."""
    if not isinstance(value, FunctionType) or _top_of(globals_module(value)) != _top(module):
        return False
    cells = value.__closure__ or ()
    return any(_is_decorated(module, name, _content(cell)) for cell in cells)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _assignments(module: ModuleType) -> Assignments:
    from jaxd_protocol.fingerprint.code.assignments import assignments_of  # few look

    return assignments_of(module)


def _origin(module: ModuleType, name: str) -> tuple[ModuleType, str] | None:
    """The module and name from which a module's own code takes what it gives this name."""
    home, names = _assignments(module).origins.get(name, ("", ()))
    owner: Any = sys.modules.get(home) if home else module
    for step in names[:-1]:
        owner = vars(owner).get(step) if isinstance(owner, ModuleType) else None
    return (owner, names[-1]) if names and isinstance(owner, ModuleType) else None


# what the code of a module makes ------------------------------------------------------------------


def _is_made(module: ModuleType, name: str, value: Any, is_local: Callable[[str], bool]) -> bool:
    """Whether it is what the module's code makes under this name, of what belongs there."""
    expression = _assignments(module).made.get(name)
    if expression is None:
        return False
    try:
        made = _evaluated(module, expression, is_local)
    except (LookupError, TypeError, RecursionError):  # names that lead to each other
        return False
    return type(value) is type(made) and _is_equal(value, made)


def _evaluated(module: ModuleType, each: Expression, is_local: Callable[[str], bool]) -> Any:
    """The value of an expression, of which nothing is called but what holds its arguments.

    Raises:
        LookupError: when something in it is not certainly what the module came with.
        TypeError: when it cannot be made.
    """
    if each.kind == "constant":
        return each.content
    if each.kind == "name":
        return _own_value(module, each.content, is_local)
    parts = [_evaluated(module, part, is_local) for part in each.parts]
    if each.kind == "sequence":
        return each.content(parts)
    if each.kind == "attribute" and isinstance(parts[0], ModuleType):
        return _own_value(parts[0], each.content, is_local)
    if each.kind == "item" and getattr(parts[0], "__module__", None) in _HOMES_OF_GENERICS:
        return parts[0][parts[1]]
    if each.kind == "union" and all(map(_is_type, parts)):
        return parts[0] | parts[1]
    if each.kind == "call" and _holds_arguments(parts[0]):
        given = len(parts) - len(each.content)
        return parts[0](*parts[1:given], **dict(zip(each.content, parts[given:], strict=True)))
    raise LookupError(each.kind)


_HOMES_OF_GENERICS: Final = frozenset({"builtins", "collections.abc", "typing"})


def _is_type(part: Any) -> bool:
    """Whether `|` makes a union of it, and of another such."""
    is_plain = isinstance(part, type) and type(part).__or__ is type.__or__
    return is_plain or part is None or isinstance(part, GenericAlias | UnionType)


def _holds_arguments(callee: Any) -> bool:
    """Whether what a class makes is nothing but its arguments: a partial, a namespace, a dtype."""
    dtype = getattr(sys.modules.get("numpy"), "dtype", None)
    return any(callee is each for each in (functools.partial, SimpleNamespace, dtype))


def _own_value(module: ModuleType, name: str, is_local: Callable[[str], bool]) -> Any:
    """What a module came with under a name, which it may have deleted, or Python in its builtins.

    Raises:
        LookupError: when that is not certain.
    """
    origin = _origin(module, name) if name not in vars(module) else (module, name)
    if origin is None:
        value = vars(builtins)[name]
        is_own = is_own_builtin(name, value)
    else:
        value = vars(origin[0])[origin[1]]
        is_own = is_unpatched(*origin, value, is_local)
    if not is_own:
        raise LookupError(name)
    return value


def _is_equal(value: Any, made: Any) -> bool:
    """Whether two values of one type hold the same."""
    mine, others = _held(value), _held(made)
    if mine is None or others is None:
        return bool(value == made)
    same = (is_same(each, others[name]) for name, each in mine.items())
    return mine.keys() == others.keys() and all(same)


def _held(value: Any) -> dict[Any, Any] | None:
    """What a partial or a namespace holds; None for anything else."""
    if isinstance(value, functools.partial):
        return {-1: value.func, **dict(enumerate(value.args)), **value.keywords, **vars(value)}
    return vars(value) if isinstance(value, SimpleNamespace) else None


def is_own_code(value: Any, is_local: Callable[[str], bool]) -> bool:
    """Whether a value is a function or class of the user's, or something around one.

    Args:
        value: any.
        is_local: whether a module is the user's own.
    """
    while isinstance(value, functools.partial):
        value = value.func
    for layer in _unwrapped(value):
        if isinstance(layer, FunctionType):
            home = layer.__globals__.get("__name__")
        else:
            home = (layer if isinstance(layer, type) else type(layer)).__module__
        if isinstance(home, str) and is_local(home):
            return True
    return False


def is_replaced_constant(module: ModuleType, name: str, value: Any) -> bool:
    """Whether another value is there than the module's own code assigns.

    Args:
        module: the installed module.
        name: of an attribute; one to which the module assigns more than constants is never told.
        value: what is there now: a plain value, an array or a number of numpy.
    """
    is_data = is_plain_data(value) or is_array(value) or type(value).__module__ == "numpy"
    own = _assignments(module).constants.get(name, ()) if is_data else ()
    return bool(own) and not any(is_same(value, each) for each in own)


def _top(module: ModuleType) -> str:
    return _top_of(module.__name__)


def _top_of(module: str) -> str:
    return module.partition(".")[0].lstrip("_")


def _is_known_constant(name: str, value: Any) -> bool:
    if name.startswith("__"):
        return True
    if name not in _CONSTANTS:
        return False
    expected = _CONSTANTS[name]
    return value is expected or value == expected or (name == "nan" and str(value) == "nan")


def is_plain_data(value: Any) -> bool:
    """Whether a container holds nothing but plain values, and not too many."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if kind in (list, tuple, set, frozenset):
        return len(value) <= _MAX_PLAIN_ITEMS and all(map(is_plain_data, value))
    if kind is dict:
        few = len(value) <= _MAX_PLAIN_ITEMS
        return few and all(map(is_plain_data, (*value, *value.values())))
    return False


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy or jax, or of a subclass."""
    names = {base.__name__ for base in type(value).__mro__}
    return bool(names & {"ndarray", "ArrayImpl"})


def _unwrapped(value: Any) -> Iterator[Any]:
    """The value, and the functions below decorators such as `jax.jit`."""
    for _ in range(20):
        yield value
        value = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)
        if value is None:
            return


_BUILTIN_CONSTANTS: Final = frozenset(
    {"Ellipsis", "False", "None", "NotImplemented", "True", "__debug__"}
)
_HOMES_OF_BUILTINS: Final = frozenset({"_io", "_sitebuiltins", "builtins", "io"})


def is_own_builtin(name: str, value: Any) -> bool:
    """Whether Python itself has this value under this name in its builtins."""
    if is_plain_data(value):
        return name in _BUILTIN_CONSTANTS
    home = getattr(value, "__module__", None) or type(value).__module__
    own = getattr(value, "__name__", name)  # IOError and others are OSError
    return name in _BUILTIN_CONSTANTS or (home in _HOMES_OF_BUILTINS and own in (name, "OSError"))


def globals_module(function: FunctionType) -> str:
    """The module whose globals a function reads.

    Its `__module__` may differ: `functools.wraps` copies that.
    """
    return str(function.__globals__.get("__name__") or "?")


def source_location(code: CodeType) -> str:
    """File and line: ``utils.py:41``."""
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{code.co_firstlineno}"


def refuse_patched_function(
    function: FunctionType, is_local: Callable[[str], bool], path: Callable[[], str]
) -> None:
    """Raises for an installed function whose code, or one of whose forms, is the user's own.

    A form for a class of the user's own is a part of that class.

    Args:
        function: the function.
        is_local: whether a module is the user's own.
        path: gives how it was reached, for the message.

    Raises:
        PackingError: the server's function is as it was installed.
    """
    code = function.__code__
    home = getattr(sys.modules.get(globals_module(function)), "__file__", None) or code.co_filename
    if is_local_file(home):
        return
    name = f"{function.__module__}.{function.__qualname__}"
    if _is_own_code(code):
        raise PackingError(
            f"{path()} uses {name}, whose code was replaced by that of {code.co_qualname} "
            f"({source_location(code)}). The server has the original. Call your own function "
            "instead."
        )
    forms = vars(function).get("registry")  # of `functools.singledispatch`
    for kind, form in forms.items() if isinstance(forms, Mapping) else ():
        added = getattr(form, "__code__", None)
        is_of_installed = importable_name(kind) is not None and not is_local(kind.__module__)
        if is_of_installed and isinstance(added, CodeType) and _is_own_code(added):
            raise PackingError(
                f"{path()} uses {name}, with which {added.co_qualname} is registered for "
                f"{kind.__qualname__} ({source_location(added)}). On a server that would hold for "
                "all clients. Register it for a class of your own, or call your own function."
            )


def _is_own_code(code: CodeType) -> bool:
    return os.path.isabs(code.co_filename) and is_local_file(code.co_filename)


def refuse_patched_class(
    cls: type, is_local: Callable[[str], bool], path: Callable[[], str]
) -> None:
    """Raises for an installed class that was given a method of the user's.

    Args:
        cls: the class.
        is_local: whether a module is the user's own.
        path: gives how the class was reached, for the message.

    Raises:
        PackingError: the server's class does not have it, and other clients must not get it.
    """
    found = ((name, content) for base in cls.__mro__[:-1] for name, content in vars(base).items())
    for name, content in found:
        homes = {globals_module(each) for each in functions_in(content)} & sys.modules.keys()
        if any(map(is_local, homes)):  # of no module: what a named tuple makes for itself
            raise PackingError(
                f"{path()} uses {cls.__module__}.{cls.__qualname__}, whose {name} was "
                "replaced by code of your own. The server has the original. Make a subclass with "
                "your own method and use that."
            )


def functions_in(content: Any) -> list[FunctionType]:
    """The functions of a class attribute: a method, however it is wrapped, or a property."""
    parts = (content.fget, content.fset, content.fdel) if isinstance(content, property) else ()
    found: list[Any] = [*parts, *_unwrapped(content)] if not isinstance(content, type) else []
    return [each for each in found if isinstance(each, FunctionType)]
