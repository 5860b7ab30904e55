"""Calls with flax nnx objects, which are updated in place with the function's changes.

As with `nnx.jit`. A function that is called with such an object is compiled as one that returns
the new values as well, which are then put into the caller's own variables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from jaxd.interop.jax_runtime import PRNGKeys, loaded_jax, to_jax_keys
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.jit.nnx_updates import (
    SAME_ARGUMENT,
    Updating,
    loaded_nnx,
    variables_of,
    without_duplicates,
)


class Clearable(Protocol):
    """A function of which a server keeps programs."""

    def clear(self) -> int:
        """Has the server forget them; returns how many there were."""


F = TypeVar("F", bound=Clearable)

_OTHER, _CONTAINER, _OBJECT = range(3)
_MAX_CLASSES: Final = 1000
_kinds: Final = BoundedDict[type, int](_MAX_CLASSES)


def _contains_nnx(value: Any) -> bool:
    kind = _kinds.get(type(value))
    if kind is None:
        kind = _kinds[type(value)] = _kind_of(type(value))
    if kind != _CONTAINER:
        return kind == _OBJECT
    return any(map(_contains_nnx, value.values() if isinstance(value, dict) else value))


def _kind_of(cls: type) -> int:
    nnx = loaded_nnx()
    if issubclass(cls, (nnx.Pytree, nnx.Variable)):
        return _OBJECT
    return _CONTAINER if issubclass(cls, (tuple, list, dict)) else _OTHER


class NnxCall(NamedTuple, Generic[F]):
    """One call with such objects.

    Attributes:
        function: what is called in the place of the function.
        variables: the caller's own.
        args, kwargs: what the caller gives.
        sent_args, sent_kwargs: what is sent: of a variable that is there twice, only one.
    """

    function: F
    variables: list[Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sent_args: tuple[Any, ...]
    sent_kwargs: Mapping[str, Any]

    def finish(self, reply: Any) -> Any:
        """Brings the caller's objects up to date; returns the function's own result."""
        changes, result, marks = reply
        for number, value in changes.items():
            self.variables[number].set_raw_value(_as_jax_value(value))
        return self._without_markers(result) if marks else result

    def _without_markers(self, result: Any) -> Any:
        def given(leaf: Any) -> Any:
            if not _is_marker(leaf):
                return leaf
            (name,) = leaf[SAME_ARGUMENT]
            return self.args[name] if isinstance(name, int) else self.kwargs[name]

        return loaded_jax().tree.map(given, result, is_leaf=_is_marker)


class NnxCalls(Generic[F]):
    """The calls of one function with nnx objects. Thread-safe, as far as the objects are.

    Args:
        function: what is called.
        gives_up: whether arguments are donated.
    """

    def __init__(self, function: Callable[..., Any], *, gives_up: bool) -> None:
        self._function = function
        self._donates = gives_up
        self._lock = threading.Lock()  # guards _made
        self._prepared_functions: dict[tuple[tuple[int, ...], bool], F] = {}

    def prepared(
        self,
        make: Callable[[Updating], F],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        refuses: bool,
    ) -> NnxCall[F] | None:
        """A call with these arguments; None when no nnx object is among them, or in containers.

        Args:
            make: gives what calls another function, with the options of this one.
            args: positional arguments.
            kwargs: keyword arguments.
            refuses: whether the call returns the function's result itself, and a change is an
                error.
        """
        if isinstance(self._function, Updating) or loaded_nnx() is None:
            return None
        if not (any(map(_contains_nnx, args)) or any(map(_contains_nnx, kwargs.values()))):
            return None
        given = args, dict(kwargs)
        variables = variables_of(given)
        same = _alias_positions(variables)
        function = self._updating_function(make, same, refuses)
        return NnxCall(function, variables, *given, *(without_duplicates(given) if same else given))

    def clear(self) -> int:
        """Has the server forget what it built for such calls; returns how many programs."""
        with self._lock:
            made = list(self._prepared_functions.values())
        return sum(each.clear() for each in made)

    def _updating_function(
        self, make: Callable[[Updating], F], same: tuple[int, ...], refuses: bool
    ) -> F:
        with self._lock:
            made = self._prepared_functions.get((same, refuses))
            if made is None:
                updating = Updating(
                    self._function, same, refuses=refuses, all_of_them=self._donates
                )
                made = self._prepared_functions[same, refuses] = make(updating)
            return made


def _alias_positions(variables: list[Any]) -> tuple[int, ...]:
    """For each the number of the first one that is the same; nothing when no two are."""
    first: dict[int, int] = {}
    places = tuple(first.setdefault(id(each), number) for number, each in enumerate(variables))
    return places if len(first) < len(variables) else ()


def _is_marker(value: Any) -> bool:
    return type(value) is dict and SAME_ARGUMENT in value


def _as_jax_value(value: Any) -> Any:
    """A result as a variable holds it, whatever the form of results."""
    if type(value) is PRNGKeys:
        return to_jax_keys(value.impl, value.data)
    return loaded_jax().tree.map(_as_jax_array, value)


def _as_jax_array(value: Any) -> Any:
    jax = loaded_jax()
    return value if isinstance(value, jax.Array) else jax.numpy.asarray(value)
