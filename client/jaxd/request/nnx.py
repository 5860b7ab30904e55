"""Calls with flax nnx objects, which are updated in place with the function's changes.

As with `nnx.jit`. A function that is called with such an object is compiled as one that returns
what it changes as well, which is then brought into the caller's own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from jaxd.interop.jax_runtime import PRNGKeys, loaded_jax, to_jax_keys
from jaxd_protocol.errors import ResultError
from jaxd_protocol.jit.nnx_objects import loaded_nnx
from jaxd_protocol.jit.nnx_updates import ObjectCall, Updating
from jaxd_protocol.jit.static_args import StaticArgs


class Clearable(Protocol):
    """A function of which a server keeps programs."""

    def clear(self) -> int:
        """Has the server forget them; returns how many there were."""


F = TypeVar("F", bound=Clearable)


class NnxCall(NamedTuple, Generic[F]):
    """One call with such objects.

    Attributes:
        function: what is called in the place of the function.
        call: its arguments.
        cached: ids of the objects that `nnx.cached_partial` holds copies of.
    """

    function: F
    call: ObjectCall
    cached: frozenset[int]

    @property
    def sent_args(self) -> tuple[Any, ...]:
        """The positional arguments that are sent."""
        return self.call.args

    @property
    def sent_kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments that are sent."""
        return self.call.kwargs

    def finish(self, reply: Any) -> Any:
        """Brings the caller's objects up to date; returns the function's own result.

        Raises:
            ResultError: when an attribute that is no data cannot be had here. Nothing is changed.
            ValueError: when more than values has changed in a copy that is cached, as in nnx.
        """
        for changed in self.call.restructured(reply):
            if id(changed) in self.cached:
                raise ValueError(
                    f"the function changes attributes of a {type(changed).__qualname__} that "
                    "nnx.cached_partial holds a copy of, and may change only what variables hold. "
                    "Pass the object itself to the function."
                )
        return self.call.finish(reply, _as_jax_value, _check_attribute)


class NnxCalls(Generic[F]):
    """The calls of one function with nnx objects. Thread-safe, as far as the objects are.

    Args:
        function: what is called.
        statics: its static arguments, in which no objects are looked for.
        gives_up: whether arguments are donated.
    """

    def __init__(
        self, function: Callable[..., Any], statics: StaticArgs, *, gives_up: bool
    ) -> None:
        self._function = function
        self._statics = statics
        self._donates = gives_up
        self._made: dict[bool, F] = {}

    def prepared(
        self,
        make: Callable[[Updating], F],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        refuses: bool,
    ) -> NnxCall[F] | None:
        """A call with these arguments; None when no nnx object is among them.

        Args:
            make: gives what calls another function, with the options of this one.
            args: positional arguments.
            kwargs: keyword arguments.
            refuses: whether the call returns the function's result itself, and a change is an
                error.
        """
        if isinstance(self._function, Updating) or loaded_nnx() is None:
            return None
        cached = _take_cached()
        call = ObjectCall.of(args, kwargs, self._statics)
        if call is None:
            return None
        made = self._made.get(refuses)
        if made is None:
            updating = Updating(self._function, refuses=refuses, all_of_them=self._donates)
            made = self._made.setdefault(refuses, make(updating))
        return NnxCall(made, call, cached)

    def clear(self) -> int:
        """Has the server forget what it built for such calls; returns how many programs."""
        return sum(each.clear() for each in tuple(self._made.values()))


def _take_cached() -> frozenset[int]:
    """Ids of the objects that an `nnx.cached_partial` which makes this call has in its cache.

    It wants the cache taken by what it calls, as `nnx.jit` does, which needs not flatten them then.
    """
    with loaded_nnx().update_context("jaxd") as context:
        cache = context.static_cache or {}
        return frozenset(id(each) for node in cache for each in (node, *cache[node].new_ref_index))


def _as_jax_value(value: Any) -> Any:
    """A result as an object holds it, whatever the form of results."""
    if type(value) is PRNGKeys:
        return to_jax_keys(value.data, value.impl)
    return loaded_jax().tree.map(_as_jax_array, value, is_leaf=lambda each: type(each) is PRNGKeys)


def _as_jax_array(value: Any) -> Any:
    jax = loaded_jax()
    if type(value) is PRNGKeys:
        return to_jax_keys(value.data, value.impl)
    return value if isinstance(value, jax.Array) else jax.numpy.asarray(value)


def _check_attribute(cls: type, name: str, value: Any) -> None:
    """Returns when an attribute that a call has set can be had here.

    A server can name every function that the caller's has in it, so it may not put one in the
    place of a method.
    """
    from jaxd.results.local_objects import RemoteObject

    there = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if callable(value) and callable(getattr(there, "__func__", there)):
        raise ResultError(
            f"the function puts {value!r} in the place of {cls.__qualname__}.{name}, which its "
            "class defines. Give it an attribute of another name."
        )
    tree = loaded_jax().tree
    for each in tree.leaves(value):
        if type(each) is RemoteObject:
            raise ResultError(
                f"the function sets the attribute {name!r} of a {cls.__qualname__} to what this "
                f"process does not have: {each.about}. Set it before the call, or pass it as an "
                "argument."
            )
