"""Code objects: by value, or, for code of an installed module, by module and qualified name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from types import CodeType
from typing import Any, Final

from jaxd_protocol.errors import PackingError

CodeLocation = tuple[str, str, tuple[str, ...], bytes]
"""Module, qualified name, free variables, and a short digest of the instructions."""


def locate_code(module: str, code: CodeType) -> CodeLocation | None:
    """The location of this code in an installed module; None when it was made at run time."""
    place = (module, code.co_qualname, code.co_freevars, _digest(code))
    return place if code in _candidates(place) else None


def find_code(place: CodeLocation) -> CodeType:
    """The code at that location in this process's own copy of the module.

    Raises:
        PackingError: when there is none.
    """
    found = _candidates(place)
    same = [code for code in found if _digest(code) == place[3]]
    if same or len(found) == 1:
        return (same or found)[0]
    module, name, _, _ = place
    top = module.partition(".")[0]
    raise PackingError(
        f"the function holds {module}.{name}, and the server's {top} has no such code: its version "
        f"differs. Install the same version of {top} on the server and here."
    )


def _candidates(place: CodeLocation) -> list[CodeType]:
    module, name, free, _ = place
    return [code for code in _codes_of(module).get(name, ()) if code.co_freevars == free]


@cache
def _codes_of(module: str) -> dict[str, list[CodeType]]:
    """The code objects of an installed module, by qualified name."""
    importlib.import_module(module)
    loader = getattr(sys.modules[module].__spec__, "loader", None)
    get_code: Callable[[str], CodeType | None] = getattr(loader, "get_code", lambda _: None)
    found: dict[str, list[CodeType]] = {}
    for code in _nested(get_code(module)):
        found.setdefault(code.co_qualname, []).append(code)
    return found


def _nested(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _nested(constant)


def _digest(code: CodeType) -> bytes:
    return blake2b(code.co_code, digest_size=8).digest()


_ARGUMENTS: Final = (
    *("argcount", "posonlyargcount", "kwonlyargcount", "nlocals", "stacksize", "flags"),
    *("code", "consts", "names", "varnames", "filename", "name", "qualname", "firstlineno"),
    *("linetable", "exceptiontable", "freevars", "cellvars"),
)
"""The parameters of `CodeType`, in order."""


def code_arguments(code: CodeType) -> tuple[Any, ...]:
    """The arguments of `CodeType` that make the code again."""
    return tuple([without_shared_objects(getattr(code, f"co_{name}")) for name in _ARGUMENTS])


def without_shared_objects(value: Any) -> Any:
    """An equal value whose strings, bytes and tuples are objects of their own.

    pickle writes a repeated object as a reference. Which equal constants of a code object are one
    object differs between code that was just compiled and code from a .pyc file, and the packed
    bytes must not.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([without_shared_objects(item) for item in value])
    if kind is str:
        return str(value.encode("utf-8", "surrogatepass"), "utf-8", "surrogatepass")
    return bytes(bytearray(value)) if kind is bytes else value
