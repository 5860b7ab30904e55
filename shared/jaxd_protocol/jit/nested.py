"""Persistent functions that another function calls while it is traced: they stay in the process.

Each is compiled as a part of the outer function, as a function under `jax.jit` is inside of
another, with the same rules for its arguments and results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper, JitOptions
from jaxd_protocol.jit.nnx_objects import loaded_nnx
from jaxd_protocol.jit.nnx_updates import ObjectCall, Updating
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args
from jaxd_protocol.jit.static_leaves import is_traceable
from jaxd_protocol.pytree.padding import pad_in_trace


def nested(function: Callable[..., Any], options: JitOptions | None) -> Callable[..., Any]:
    """The function in the form in which others call it on the server."""
    return function if options is None else _NestedFunction(function, options)


class _NestedFunction(FunctionWrapper):
    """A persistent function that another one calls, where both are traced."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._jit_options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it as `jax.jit` does."""
        return call_jitted(self.__wrapped__, self._jit_options or (), args, kwargs)

    def __reduce__(self) -> Any:
        return nested, (self.__wrapped__, self._jit_options)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"


def call_jitted(
    function: Callable[..., Any], options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `jax.jit(function)(*args, **kwargs)` returns.

    Of nnx objects, what `nnx.jit` does, unless `static="jax"` makes them trees as of `jax.jit`.

    Each call makes a function object of its own: jax caches by the object, and the next program
    may have other settings of jax.
    """
    named = dict(options)
    padding = named.pop("padding", None)
    if padding is not None:
        args, kwargs = pad_in_trace(padding, args, kwargs)
    given = Options(**named)
    statics = infer_static_args(function, given)
    has_nnx = loaded_nnx() is not None and not statics.strict
    if has_nnx and not isinstance(function, Updating):
        call = ObjectCall.of(args, kwargs, statics)
        if call is not None:
            return call.finish(_jitted(Updating(function), given, call.args, call.kwargs))
    return _jitted(function, given, args, kwargs)


def _jitted(
    function: Callable[..., Any], given: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    import jax

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
    places = [i for i, leaf in enumerate(leaves) if is_traceable(leaf)]
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
