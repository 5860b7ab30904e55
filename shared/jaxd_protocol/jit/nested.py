"""Persistent functions that are called while another function is traced: never over the wire.

Each is compiled as a part of the outer function, as a function under `jax.jit` is inside of
another, with the same rules for its arguments and results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper, JitOptions
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args


def nested(function: Callable[..., Any], options: JitOptions | None) -> Callable[..., Any]:
    """The function as others call it on the server."""
    return function if options is None else _NestedFunction(function, options)


class _NestedFunction(FunctionWrapper):
    """Made where a persistent function arrives that another one calls."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.jit_options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it as `jax.jit` does."""
        return call_jitted(self.__wrapped__, self.jit_options or (), args, kwargs)

    def __reduce__(self) -> Any:
        return nested, (self.__wrapped__, self.jit_options)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"


def call_jitted(
    function: Callable[..., Any], options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `jax.jit(function)(*args, **kwargs)` returns.

    By a function object of its own: what jax remembers of one, it would remember under settings
    of jax that are others in the next program.
    """
    import jax

    given = Options(**dict(options))

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    statics = infer_static_args(function, given)
    if not statics.strict:
        dynamic, bound = _with_implicit_static(inner, statics, args, kwargs)
        if bound is not None:
            return jax.jit(bound)(*dynamic)
    return jax.jit(inner, **given.jit_arguments())(*args, **kwargs)


def _with_implicit_static(
    function: Callable[..., Any], statics: StaticArgs, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Callable[..., Any] | None]:
    """The leaves that jax can trace and the function of them; None where these are all."""
    import jax

    positions = statics.at(len(args))
    static = {i: value for i, value in enumerate(args) if i in positions}
    named = {name: value for name, value in kwargs.items() if name in statics.names}
    rest = [None if i in static else value for i, value in enumerate(args)]
    others = {name: value for name, value in kwargs.items() if name not in named}
    leaves, structure = jax.tree.flatten((rest, others))
    places = [i for i, leaf in enumerate(leaves) if _is_traceable(leaf)]
    if len(places) == len(leaves):
        return leaves, None

    @functools.wraps(function)
    def bound(*dynamic: Any) -> Any:
        whole = list(leaves)
        for place, value in zip(places, dynamic, strict=True):
            whole[place] = value
        rebuilt, others = jax.tree.unflatten(structure, whole)
        arguments = [static.get(i, value) for i, value in enumerate(rebuilt)]
        return function(*arguments, **others, **named)

    del bound.__wrapped__  # it takes other arguments
    return [leaves[place] for place in places], bound


def _is_traceable(leaf: Any) -> bool:
    import jax
    import numpy

    if isinstance(leaf, str | bytes):
        return False
    if isinstance(leaf, bool | int | float | complex | numpy.ndarray | numpy.generic | jax.Array):
        return True
    return hasattr(type(leaf), "__jax_array__") or (
        hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )
