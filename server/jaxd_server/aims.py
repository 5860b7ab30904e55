"""Which function of its client a program calls back: said so that each client finds its own.

An executable is shared by all clients whose function has the same key. So it does not hold what
it calls, but an *aim*: how to find that among what a client's function reaches. The client that
runs the program looks it up, in its own process, each time.

    ("live", number, names)             an attribute of what is only given to be called back
    ("object", number)                  what has this number in the walk over the function
    ("get", aim, name)                  an attribute of it
    ("partial", aim, aims, {name: aim}) functools.partial
    ("made", aim, path, cells, defaults, keywords)   a function that the code of another one makes
    ("cell", aim, number)               a cell of that other function's closure
    ("items", kind, aims)               a list, tuple or dict
    ("array", data)                     an array of numpy's
    ("value", data)                     data, or a class or function that results may name
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.importable import importable_name
from jaxd_protocol.installed import is_local_module
from jaxd_protocol.live import Live
from jaxd_protocol.packing import id_of
from jaxd_server.result_encoder import Slot

__all__ = ["Aim", "Aims", "stays_here"]

Aim = tuple[Any, ...]

_OF_THE_SERVER: Final = frozenset({"jax", "jaxlib", "numpy"}) | sys.stdlib_module_names
_CONTAINERS: Final = (list, tuple, dict)


def stays_here(function: Callable[..., Any]) -> bool:
    """Whether a callback does the same on the server: Python's own, jax's own, or a library's.

    What they print is shown where the call is. A function that a library offers by a name may know
    something of the client's process, and so it does not stay.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, Live):
        return False
    owner = getattr(function, "__self__", None)
    if isinstance(function, MethodType) or (owner is not None and type(owner) is not ModuleType):
        return any(owner is stream for stream in (sys.stdout, sys.stderr))
    home = getattr(function, "__module__", None) or ""
    if not home or is_local_module(home):
        return not home
    is_named = isinstance(function, FunctionType) and importable_name(function) is not None
    return home.partition(".")[0] in _OF_THE_SERVER or not is_named


class Aims:
    """Makes the aims of one function that is traced.

    Args:
        name: what people call it.
        objects: what it reaches, by number.
        live: what it only gives to be called back, by number.
    """

    def __init__(self, name: str, objects: Sequence[Any], live: Sequence[Any]) -> None:
        self._name = name
        self._objects = objects
        self._numbers = {id(value): number for number, value in enumerate(objects)}
        self._live = {id(value): number for number, value in enumerate(live)}

    def at(self, function: Callable[..., Any]) -> tuple[Aim, list[Any]]:
        """The aim at a function, and the arrays that it holds: there are slots for them in it.

        Raises:
            CallbackError: when its client could not find it.
        """
        arrays: list[Any] = []
        return self._at(function, arrays), arrays

    def _at(self, value: Any, arrays: list[Any]) -> Aim:
        if type(value) is Live:
            return "live", value.number, value.names
        for kind, numbers in (("live", self._live), ("object", self._numbers)):
            number = numbers.get(id(value))
            if number is not None:
                return (kind, number, ()) if kind == "live" else (kind, number)
        if isinstance(value, functools.partial):
            named = {name: self._at(each, arrays) for name, each in value.keywords.items()}
            given = tuple(self._at(each, arrays) for each in value.args)
            return "partial", self._at(value.func, arrays), given, named
        if isinstance(value, MethodType | BuiltinFunctionType) and _is_bound(value):
            return "get", self._at(value.__self__, arrays), value.__name__
        if isinstance(value, FunctionType) and is_local_module(value.__module__ or ""):
            came_with_arguments = id_of(value) is not None
            return ("value", value) if came_with_arguments else self._made(value, arrays)
        return self._data(value, arrays)

    def _data(self, value: Any, arrays: list[Any]) -> Aim:
        if type(value) in _CONTAINERS:
            items = [*value.items()] if type(value) is dict else value
            return "items", type(value).__name__, tuple(self._at(each, arrays) for each in items)
        if any(base.__name__ == "Tracer" for base in type(value).__mro__):
            raise CallbackError(
                f"{self._name} gives a function to jax.debug.callback or io_callback that closes "
                "over a value which is only computed when the program runs. Pass it as an argument "
                "of the callback."
            )
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            arrays.append(value)
            is_jaxs = any(base.__module__.startswith("jax") for base in type(value).__mro__)
            return "value" if is_jaxs else "array", Slot(len(arrays) - 1, value)
        return "value", value

    def _made(self, function: FunctionType, arrays: list[Any]) -> Aim:
        number, path = self._maker(function.__code__)
        owner: Any = self._objects[number]
        cells = tuple(
            self._cell(owner, number, cell, arrays) for cell in function.__closure__ or ()
        )
        defaults = self._at(function.__defaults__, arrays) if function.__defaults__ else None
        keywords = self._at(function.__kwdefaults__, arrays) if function.__kwdefaults__ else None
        return "made", ("object", number), path, cells, defaults, keywords

    def _cell(self, owner: FunctionType, number: int, cell: Any, arrays: list[Any]) -> Aim:
        for index, own in enumerate(owner.__closure__ or ()):
            if own is cell:
                return "cell", ("object", number), index
        try:
            return self._at(cell.cell_contents, arrays)
        except ValueError:
            raise self._not_found(owner) from None

    def _maker(self, code: CodeType) -> tuple[int, tuple[int, ...]]:
        """The function in whose code this one stands, and the way there."""
        for number, value in enumerate(self._objects):
            if isinstance(value, FunctionType):
                path = _path(value.__code__, code)
                if path is not None:
                    return number, path
        raise self._not_found(code)

    def _not_found(self, what: Any) -> CallbackError:
        name = getattr(what, "__qualname__", None) or what.co_qualname
        return CallbackError(
            f"{self._name} gives {name} to jax.debug.callback or io_callback, which is to run in "
            "the client's process, and the client cannot know which function that is. Define it at "
            "the top of its file, or inside of the function that passes it to jax."
        )


def _is_bound(value: Any) -> bool:
    owner = value.__self__
    return owner is not None and not isinstance(owner, ModuleType)


def _path(outer: CodeType, wanted: CodeType) -> tuple[int, ...] | None:
    """The way to a code object inside of another one: a number among the nested ones each time."""
    if outer is wanted:
        return ()
    nested = (each for each in outer.co_consts if isinstance(each, CodeType))
    for index, inner in enumerate(nested):
        below = _path(inner, wanted)
        if below is not None:
            return (index, *below)
    return None
