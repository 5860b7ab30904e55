"""Code objects: by value, or, for code of an installed module, by the place where it is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

from jaxd_protocol.errors import PackingError

CodeLocation = tuple[str, str, tuple[str, ...], bytes]
"""Module, qualified name, free variables, and a short digest of the instructions."""

_module_codes: dict[str, dict[str, list[CodeType]]] = {}


def locate_code(module: str, code: CodeType) -> CodeLocation | None:
    """Where an installed module has this code; None when it was made at run time."""
    place = (module, code.co_qualname, code.co_freevars, _digest(code))
    return place if code in _candidates(place) else None


def find_code(place: CodeLocation) -> CodeType:
    """The code that this process's own copy of the module has at that place.

    Raises:
        PackingError: when it has none.
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
    found = _module_codes.get(module)
    if found is None:
        found = {}
        for code in _nested(_module_code(module)):
            found.setdefault(code.co_qualname, []).append(code)
        _module_codes[module] = found
    return [code for code in found.get(name, ()) if code.co_freevars == free]


def _module_code(module: str) -> CodeType | None:
    importlib.import_module(module)
    loader: Any = getattr(sys.modules[module].__spec__, "loader", None)
    if not hasattr(loader, "get_code"):
        return None
    code: CodeType | None = loader.get_code(module)
    return code


def _nested(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _nested(constant)


def _digest(code: CodeType) -> bytes:
    return blake2b(code.co_code, digest_size=8).digest()


def code_arguments(code: CodeType) -> tuple[Any, ...]:
    """What `CodeType` is called with to make the code again."""
    arguments: tuple[Any, ...] = without_shared_objects(
        (
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_nlocals,
            code.co_stacksize,
            code.co_flags,
            code.co_code,
            code.co_consts,
            code.co_names,
            code.co_varnames,
            code.co_filename,
            code.co_name,
            code.co_qualname,
            code.co_firstlineno,
            code.co_linetable,
            code.co_exceptiontable,
            code.co_freevars,
            code.co_cellvars,
        )
    )
    return arguments


def without_shared_objects(value: Any) -> Any:
    """An equal value whose strings, bytes and tuples are objects of their own.

    pickle writes an object that it has met before as a reference. Which equal constants of a code
    object are one object differs between code that was just compiled and code from a .pyc file,
    and the packed bytes should not.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([without_shared_objects(item) for item in value])
    if kind is str:
        return str(value.encode("utf-8", "surrogatepass"), "utf-8", "surrogatepass")
    return bytes(bytearray(value)) if kind is bytes else value
