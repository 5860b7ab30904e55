"""What a persistent function is on the server, inside of another one: never a call over the wire.

It is compiled as a part of the outer function, as a function under `jax.jit` is inside of another,
with the same rules for its arguments and results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

__all__ = ["BoundFunction", "JitOptions", "PlainInside", "nested"]

JitOptions = tuple[tuple[str, Any], ...]
"""Name and value of each option of `jaxd_protocol.calls.Options` that is not the default."""


class PlainInside:
    """Base of what stands for a function, and is that function inside of another one.

    Attributes:
        __wrapped__: the function.
        jit_options: how `jax.jit` compiles it there; None: it is the plain function.
    """

    __wrapped__: Callable[..., Any]
    jit_options: JitOptions | None = None

    def __reduce__(self) -> Any:
        """On the way to a server it is the function itself."""
        return nested, (self.__wrapped__, self.jit_options)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As for any function: found on an instance, the instance is the first argument."""
        return self if instance is None else MethodType(self, instance)  # type: ignore[arg-type]


class BoundFunction(partial[Any]):
    """Base of what a persistent function is on an instance, where that has more names than a call.

    Looked at, compared and packed it is the bound method of the function that it stands for. A
    `partial`, because that is made and called in C.
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


def nested(function: Callable[..., Any], options: JitOptions | None) -> Callable[..., Any]:
    """The function as others call it on the server."""
    return function if options is None else _Nested(function, options)


class _Nested(PlainInside):
    """Made where a persistent function arrives that another one calls."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        import functools

        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.jit_options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it as `jax.jit` does."""
        from jaxd_protocol.jax_objects.inner_jits import call_jitted

        return call_jitted(self.__wrapped__, self.jit_options or (), args, kwargs)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"
