"""Finds the function that a server's program calls back: among what this process's own reaches.

The forms of an aim are described where servers make them, in `jaxd_server.aims`. Nothing is
imported or unpickled here because a server says so. A server that others have got hold of must not
get hold of its clients: it cannot walk from an object to whatever hangs there, and what Python,
jax and numpy offer is not called for it (an honest server calls that itself), unless the function
gives just that to be called back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import CallbackError, ProtocolError
from jaxd_protocol.installed import is_local_module

__all__ = ["find", "function_at"]

Aim = tuple[Any, ...]

_NOT_FOR_SERVERS: Final = frozenset({"jax", "jaxlib", "numpy"}) | sys.stdlib_module_names


def function_at(aim: Aim, objects: Sequence[Any], live: Sequence[Any]) -> Callable[..., Any]:
    """The function that a server aims at, as `find`.

    Raises:
        ProtocolError: as `find`, and when it is none that a server may have called.
    """
    found = find(aim, objects, live)
    while aim[0] == "partial":
        aim = aim[1]
    if aim[0] in ("live", "get", "made") or (aim[0] in ("object", "value") and _is_others(found)):
        return found  # type: ignore[no-any-return]
    raise ProtocolError(
        "the server wants a function called that no server may: it is Python's, jax's or numpy's "
        "own. Is that server what it should be?"
    )


def _is_others(function: Any) -> bool:
    """Whether a function is the user's own or a library's, or a method of any object."""
    while isinstance(function, functools.partial):
        function = function.func
    home = getattr(function, "__module__", None)
    if isinstance(home, str):
        return home.partition(".")[0] not in _NOT_FOR_SERVERS
    owner = getattr(function, "__self__", None)  # a method that is written in C says no module
    return owner is not None and not isinstance(owner, ModuleType)


def find(aim: Aim, objects: Sequence[Any], live: Sequence[Any]) -> Any:
    """What a server aims at.

    Args:
        aim: as it came from the server.
        objects: what the function that was called reaches, by number.
        live: what it only gives to be called back, by number.

    Raises:
        ProtocolError: when the aim cannot be meant for this function.
        CallbackError: when there is no such thing here.
    """
    return _Finder(objects, live).at(aim)


class _Finder:
    def __init__(self, objects: Sequence[Any], live: Sequence[Any]) -> None:
        self._objects = objects
        self._live_objects = live

    def at(self, aim: Aim) -> Any:
        """What is there."""
        try:
            kind, *rest = aim
            return self._KINDS[kind](self, *rest)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "the server wants a function called that this process does not have. Install the "
                "same jaxd on both sides."
            ) from error

    def _live(self, number: int, names: Sequence[str]) -> Any:
        found = self._live_objects[_natural(number)]
        said = set(_names_in(self._objects)) if names else set()
        for name in names:
            if name not in said:  # else a module that is given would be a way to everything
                raise ValueError(name)
            found = self._attribute(found, name)
        return found

    def _object(self, number: int) -> Any:
        return self._objects[_natural(number)]

    def _get(self, owner: Aim, name: str) -> Any:
        """A method, bound to its object; whatever else hangs there is no server's business."""
        of = self.at(owner)
        found = self._attribute(of, name)
        if isinstance(of, ModuleType) or getattr(found, "__self__", None) is not of:
            raise ValueError(name)
        return found

    def _attribute(self, owner: Any, name: str) -> Any:
        if name.startswith("__"):
            raise ValueError(name)
        try:
            return getattr(owner, name)
        except AttributeError as error:
            raise CallbackError(
                f"a function is to be called back that is not there any more: {error}. Do not "
                "remove it while programs run that call it."
            ) from error

    def _partial(self, function: Aim, args: Sequence[Aim], named: Mapping[str, Aim]) -> Any:
        given = {name: self.at(each) for name, each in named.items()}
        return functools.partial(self.at(function), *map(self.at, args), **given)

    def _made(
        self,
        owner: Aim,
        path: Sequence[int],
        cells: Sequence[Aim],
        defaults: Aim | None,
        keywords: Aim | None,
    ) -> FunctionType:
        """A function that the code of another one would make: of that code, in its globals."""
        maker = self.at(owner)
        if not isinstance(maker, FunctionType):
            raise TypeError(maker)
        code = maker.__code__
        for index in path:
            nested = [each for each in code.co_consts if isinstance(each, CodeType)]
            code = nested[_natural(index)]
        closure = tuple(self._cell_of(each) for each in cells)
        function = FunctionType(code, maker.__globals__, code.co_name, None, closure)
        function.__defaults__ = None if defaults is None else self.at(defaults)
        function.__kwdefaults__ = None if keywords is None else self.at(keywords)
        function.__qualname__ = code.co_qualname
        return function

    def _cell_of(self, aim: Aim) -> CellType:
        if aim[0] == "cell":
            _, owner, index = aim
            cell = self.at(owner).__closure__[_natural(index)]
            assert isinstance(cell, CellType)
            return cell
        return CellType(self.at(aim))

    def _items(self, kind: str, items: Sequence[Aim]) -> Any:
        return _CONTAINERS[kind](map(self.at, items))

    def _array(self, value: Any) -> Any:
        import numpy

        return numpy.array(value)

    def _value(self, value: Any) -> Any:
        return value

    _KINDS: Final[dict[str, Callable[..., Any]]] = {
        "live": _live,
        "object": _object,
        "get": _get,
        "partial": _partial,
        "made": _made,
        "items": _items,
        "array": _array,
        "value": _value,
    }


_CONTAINERS: Final[dict[str, Callable[[Any], Any]]] = {"list": list, "tuple": tuple, "dict": dict}


def _names_in(objects: Sequence[Any]) -> Iterator[str]:
    """The names that stand in the user's own functions, and in the methods of own classes."""
    for value in objects:
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and not is_local_module(home):
            continue
        members = list(vars(value).values()) if isinstance(value, type) else []
        for each in (value, *members):
            code = getattr(getattr(each, "__func__", each), "__code__", None)
            if isinstance(code, CodeType):
                yield from _names_of(code)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            yield from _names_of(nested)


def _natural(number: int) -> int:
    if number < 0:
        raise IndexError(number)
    return number
