"""What a persistent function is on the server, inside of another one: never a call over the wire.

It is compiled as a part of the outer function, as a function under `jax.jit` is inside of another,
with the same rules for its arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

__all__ = ["JitOptions", "PlainInside", "nested"]

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
