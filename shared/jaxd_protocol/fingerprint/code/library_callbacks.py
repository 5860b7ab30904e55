"""What an installed module itself gives to jax to be called back, as its own code shows it.

Both ends read the code of their own copy of the module, with the analysis that is made of local
code, and run nothing of it. A name that the code gives leads to a function of that process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from jaxd_protocol.fingerprint.code.callbacks import callback_references, nested_codes
from jaxd_protocol.fingerprint.data_model import CallbackReferences, Origin
from jaxd_protocol.packages.installed import (
    OWN_PACKAGES,
    SERVER_PACKAGES,
    content_of,
    is_local_module,
)

_NOTHING: Final[frozenset[Origin]] = frozenset()


def is_library(module: str) -> bool:
    """Whether a loaded module is of an installed package whose callbacks are a client's to run."""
    root = module.partition(".")[0]
    return root not in SERVER_PACKAGES | OWN_PACKAGES and not is_local_module(module)


def given_function(module: str, origin: Origin) -> FunctionType:
    """The function that a loaded module gives to be called back.

    Args:
        module: of an installed package.
        origin: how its code names the function.

    Raises:
        LookupError: when its code gives nothing of that name, or that is no function of a library.
        AttributeError: when the name leads to nothing.
    """
    if not is_library(module) or origin not in _given_by(module):
        raise LookupError(origin)
    names = origin.names
    if origin.kind == "module":
        found: Any = content_of(origin.name)[names[0]] if names else None
        names = names[1:]
    else:
        found = content_of(module)[origin.name]
    for name in names:  # a module's own `__getattr__` might import something
        found = vars(found)[name] if isinstance(found, ModuleType) else getattr(found, name)
    if type(found) is not FunctionType or _root_of(found) in SERVER_PACKAGES:
        raise LookupError(origin)
    return found


def _root_of(function: FunctionType) -> str:
    return str(function.__module__).partition(".")[0]


def place_given(function: FunctionType, modules: Iterable[str]) -> tuple[str, Origin] | None:
    """The first of these modules that gives this function to be called back, and how."""
    for module in dict.fromkeys(modules):
        for origin in sorted(_given_by(module)) if is_library(module) else ():
            try:
                found = given_function(module, origin)
            except (AttributeError, LookupError):
                continue
            if found is function:
                return module, origin
    return None


def _given_by(module: str) -> frozenset[Origin]:
    loader = getattr(content_of(module).get("__spec__"), "loader", None)
    return _NOTHING if loader is None else _given_in(loader, module)


@lru_cache(maxsize=256)
def _given_in(loader: Any, module: str) -> frozenset[Origin]:
    """What the code of a module gives, by the names that stand in it."""
    try:
        code = loader.get_code(module)
    except (AttributeError, ImportError, OSError, SyntaxError):
        return _NOTHING  # it is no file of Python's
    if code is None:
        return _NOTHING
    given = _references(code).objects
    return frozenset(each for each in given if each.kind in ("global", "module"))


def _references(code: CodeType) -> CallbackReferences:
    return callback_references(code, [_references(each) for each in nested_codes(code)])
