"""Implicit static arguments: values that jax cannot trace, and which of them may be static."""

from __future__ import annotations

import sys
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from jaxd.interop.jax_runtime import loaded_jax
from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper
from jaxd_protocol.pytree import is_literal

_CODE_TYPES: Final = (
    *(type, FunctionType, BuiltinFunctionType, ModuleType),
    *(MethodType, BoundWrapper),
)


def is_plain_object(value: Any) -> bool:
    """Whether a value is surely a leaf to jax, here and on the server.

    Without jax in this process only the server knows which classes of packages jax takes apart.
    """
    jax = loaded_jax()
    if jax is not None:
        return bool(jax.tree_util.all_leaves((value,)))
    if isinstance(value, (*_CODE_TYPES, Enum, str, bytes)) or is_literal(value):
        return True
    from jaxd_protocol.packages.installed import is_local_module

    cls = type(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return False  # a node to jax, without being registered
    return cls.__module__ != "builtins" and is_local_module(cls.__module__)


def is_code(value: Any) -> bool:
    """Whether this is a function or the like, and no callable node of a tree, such as a layer."""
    if isinstance(value, type):
        return True
    jax = loaded_jax()
    return callable(value) and (jax is None or bool(jax.tree_util.all_leaves((value,))))


def check_not_array_like(value: Any) -> None:
    """Returns when a leaf that is neither an array nor a number does not behave like one.

    Raises:
        ValueError: as jax, when it is a masked array, or says how it becomes an array of jax.
        ArgumentError: when it is an array of another library.
    """
    if isinstance(value, _CODE_TYPES):
        return
    cls = type(value)
    if hasattr(cls, "__jax_array__"):
        raise ValueError(
            "Triggering __jax_array__() during abstractification is no longer supported. To avoid "
            "this error, either explicitly convert your object using jax.numpy.array(), or "
            "register your object as a pytree."
        )
    if hasattr(cls, "__array__") or hasattr(value, "dtype"):
        raise ArgumentError(
            f"an argument is a {cls.__module__}.{cls.__qualname__}, which jax cannot interpret as "
            "an abstract array. Convert it with numpy.asarray, or declare it in static_argnames."
        )


def check_not_masked(array: Any) -> None:
    """Returns when a numpy array is not masked.

    Raises:
        ValueError: as jax.
    """
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        raise ValueError(
            "numpy masked arrays are not supported as direct inputs to JAX functions. Use "
            "arr.filled() to convert the value to a standard numpy array."
        )


def name_of(value: Any) -> str:
    """What people call it, the same in each call; empty for what is its own best name."""
    if is_literal(value):
        return ""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    own = getattr(value, "__qualname__", None) if isinstance(value, _CODE_TYPES) else None
    return own if isinstance(own, str) else f"an object of {type(value).__qualname__}"
