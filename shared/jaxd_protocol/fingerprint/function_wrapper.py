"""Wrappers of a function, for which walks and pickling take the function itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Self

JitOptions = tuple[tuple[str, Any], ...]
"""Name and value of each option of `jaxd_protocol.jit.options.Options` that is not the default, and
of `padding`, see `jaxd_protocol.pytree.padding`."""


class _WrappedSignature:
    """The signature of what an object wraps, for `inspect.signature(…, follow_wrapped=False)`.

    Of the class there is none, which `inspect` then takes from its `__init__`.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return None
        import inspect

        try:
            return inspect.signature(instance.__wrapped__)
        except (TypeError, ValueError) as error:
            raise AttributeError("__signature__") from error


class FunctionWrapper:
    """Base of the objects that wrap a function, and count as that function inside of another one.

    A subclass is pickled as that function, by `jaxd_protocol.jit.nested.nested`.

    Attributes:
        __wrapped__: the function.
        _jit_options: how `jax.jit` compiles it there; None: it is the plain function. Not public:
            the object is shown to users.
    """

    __wrapped__: Callable[..., Any]
    _jit_options: JitOptions | None = None
    __signature__ = _WrappedSignature()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As for any function: found on an instance, the instance is the first argument."""
        return self if instance is None else MethodType(self, instance)  # type: ignore[arg-type]

    def __copy__(self) -> Self:
        """As of any function: itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As of any function: itself."""
        return self


def jit_options_of(wrapper: FunctionWrapper) -> JitOptions | None:
    """How `jax.jit` compiles a wrapped function inside of another; None: it is the plain one."""
    return wrapper._jit_options  # noqa: SLF001  defined above


class BoundWrapper(partial[Any]):
    """Base of what a persistent function is on an instance, where that has more names than a call.

    Hashed, compared and packed it is the bound method of the wrapped function. A `partial`,
    because that is made and called in C.
    """

    __slots__ = ()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """It is bound already."""
        return self

    @property
    def __func__(self) -> Callable[..., Any]:
        """The function."""
        return self.func

    @property
    def __self__(self) -> Any:
        """The instance, which is the first argument."""
        return self.args[0]

    def __eq__(self, other: object) -> bool:
        """As bound methods: the same function on the same instance."""
        if type(other) is not type(self):
            return NotImplemented
        return self.func is other.func and self.args[0] is other.args[0]

    def __hash__(self) -> int:
        """Equal for equal ones."""
        return hash((id(self.func), id(self.args[0])))

    def __copy__(self) -> Any:
        """As a bound method: itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """As a bound method: of a copy of the instance."""
        return type(self)(self.func, copy.deepcopy(self.args[0], memo))

    def __reduce__(self) -> Any:
        """As a bound method."""
        return MethodType, (self.func, self.args[0])
