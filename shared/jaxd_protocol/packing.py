"""Functions and objects to bytes and back. The only file that imports cloudpickle.

Installed code is named, local code travels by value (see `installed`). Only servers unpack, and
only what an authenticated client sent.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import cloudpickle
from cloudpickle import cloudpickle as cloud

from jaxd_protocol.errors import JaxdError, PackingError
from jaxd_protocol.installed import is_local_module
from jaxd_protocol.pytree_classes import Registration, register_again, registration_of

__all__ = ["Packed", "pack", "pack_out_of_band", "unpack"]

_PROTOCOL: Final = 5
_KEPT_OF_MODULES: Final = frozenset({"__name__", "__package__", "__doc__"})


class Packed(bytes):
    """A packed object.

    Attributes:
        classes: `(module, qualified name)` to class, for each class that was met on the way, so
            that results can come back as instances of this process's own classes.
    """

    classes: dict[tuple[str, str], type]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, buffers: list[memoryview] | None) -> None:
        callback = None if buffers is None else lambda b: _collect(b, buffers)
        super().__init__(file, _PROTOCOL, callback)
        self.classes: dict[tuple[str, str], type] = {}

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is _SortedSet:
            return frozenset, (value.items,)
        if isinstance(value, type):
            self.classes[value.__module__, value.__qualname__] = value
            if value.__module__ != "builtins" and is_local_module(value.__module__):
                return _reduce_class(value)
        elif kind is types.FunctionType and is_local_module(value.__module__):
            return self._dynamic_function_reduce(value)
        elif kind is types.CodeType:
            rebuild, args = cloud._code_reduce(value)
            return rebuild, _unshared(args)
        elif kind is types.ModuleType and is_local_module(value.__name__):
            return _reduce_module(value)
        return super().reducer_override(value)


def _reduce_class(cls: type) -> Any:
    """A local class by value, with its qualified name and its registration as a pytree node."""
    make, args, state, _, _, fill = cloud._dynamic_class_reduce(cls)
    more = (state, fill, cls.__qualname__, registration_of(cls))
    return make, args, more, None, None, _fill_class


def _fill_class(cls: type, more: tuple[Any, Callable[..., Any], str, Registration | None]) -> None:
    state, fill, qualified_name, registration = more
    fill(cls, state)
    cls.__qualname__ = qualified_name
    if registration is not None:
        register_again(cls, registration)


def _unshared(value: Any) -> Any:
    """An equal value whose strings, bytes and tuples are objects of their own.

    pickle writes an object that it has met before as a reference. Which equal constants of a code
    object are one object differs between code that was just compiled and code from a .pyc file,
    and the packed bytes, which are hashed, must not.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([_unshared(item) for item in value])
    if kind is frozenset:
        return _SortedSet(value)
    if kind is str:
        return str(value.encode("utf-8", "surrogatepass"), "utf-8", "surrogatepass")
    return bytes(bytearray(value)) if kind is bytes else value


class _SortedSet:
    """A constant set, as in `x in {"a", "b"}`: each process has another order of its strings."""

    def __init__(self, value: frozenset[Any]) -> None:
        self.items = _unshared(
            tuple(sorted(value, key=lambda item: (type(item).__name__, repr(item))))
        )


def _reduce_module(module: types.ModuleType) -> Any:
    kept = {
        name: value
        for name, value in vars(module).items()
        if name in _KEPT_OF_MODULES or not (name.startswith("__") and name.endswith("__"))
    }
    return cloud.dynamic_subimport, (module.__name__, {}), kept, None, None, _fill_module


def _fill_module(module: types.ModuleType, state: dict[str, Any]) -> None:
    vars(module).update(state)


def _collect(buffer: pickle.PickleBuffer, buffers: list[memoryview]) -> bool:
    try:
        buffers.append(buffer.raw())
    except BufferError:  # not contiguous: the pickle carries a copy
        return True
    return False


def pack(value: Any, what: str) -> Packed:
    """One object as bytes.

    Args:
        value: a function, class, module, or anything that they reach.
        what: how to call it in an error, such as ``function 'step'``.

    Raises:
        PackingError: when it reaches something that cannot travel; the message says what.
    """
    return _dump(value, what, None)


def pack_out_of_band(value: Any, what: str) -> tuple[Packed, list[memoryview]]:
    """As `pack`, with the memory of contiguous arrays beside the bytes instead of copied."""
    buffers: list[memoryview] = []
    return _dump(value, what, buffers), buffers


def _dump(value: Any, what: str, buffers: list[memoryview] | None) -> Packed:
    file = io.BytesIO()
    pickler = _Pickler(file, buffers)
    try:
        pickler.dump(value)
    except JaxdError:
        raise
    except Exception as error:
        if RecursionError in (type(error), type(error.__cause__)):  # cloudpickle rewords it
            raise PackingError(
                f"{what} reaches a chain of objects that is too deep to pack. Break the chain, "
                "or raise sys.setrecursionlimit."
            ) from error
        raise PackingError(
            f"{what} cannot travel to the server: {error}. Look for an open file, lock, "
            "generator or connection among its globals, closure and defaults; make it inside "
            "the function, or pass what it yields as an argument."
        ) from error
    packed = Packed(file.getvalue())
    packed.classes = pickler.classes
    return packed


def unpack(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """The object again. Runs code that the sender chose: only for authenticated clients."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301
