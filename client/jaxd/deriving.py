"""From a function and the name of a transformation to the options of the transformed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxd_protocol.calls import Options
from jaxd_protocol.descriptions import parameter_names
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.statics import Statics, statics_of
from jaxd_protocol.transformations import (
    NotSpelled,
    Transformation,
    transformation,
    transformed,
    untransformed,
)
from jaxd_protocol.transformations.spelling import behind_on_instance

__all__ = ["Derived", "derived"]


class Derived(NamedTuple):
    """A transformed function.

    Attributes:
        function: what stands for it inside of other functions, and where there is no server.
        base: what it is made of; its fingerprint is that of this.
        options: how it is compiled, and what it is transformed by.
    """

    function: Callable[..., Any]
    base: Callable[..., Any]
    options: Options


def derived(
    function: Callable[..., Any],
    options: Options,
    name: str,
    given: dict[str, Any],
    *,
    on_instance: bool = False,
) -> Derived:
    """The function behind one more transformation.

    Args:
        function: a function, transformed or not.
        options: how that one is compiled.
        name: the transformation.
        given: its options.
        on_instance: whether what is transformed is the method that the function is on an instance.

    Raises:
        ConfigurationError: when an option has no place in a key.
    """
    statics = statics_of(function, options)
    names = parameter_names(function)
    first = statics.positions & {0} if on_instance else frozenset()
    own = _of_method(statics, names) if on_instance else statics
    if name == "vmap":
        given |= {
            "static_argnums": tuple(sorted(own.positions)),
            "static_argnames": tuple(sorted(own.names)),
        }
    if name in ("jvp", "vjp"):  # whose positional arguments are tuples of those of the function
        names = names[1:] if on_instance else names
        numbers = [number for number in sorted(own.positions) if number < len(names)]
        given |= {"static": tuple((number, names[number]) for number in numbers)}
        statics = Statics(first, statics.names)
    if isinstance(given.get("argnums"), list):
        given |= {"argnums": tuple(given["argnums"])}  # which is the same to jax
    before, one = options.transformations, _spelled(name, given)
    transformations = behind_on_instance(before, one) if on_instance else (*before, one)
    base = untransformed(function)
    return Derived(
        transformed(base, transformations),
        base,
        options._replace(
            static_argnums=tuple(sorted(statics.positions)) if statics else None,
            static_argnames=tuple(sorted(statics.names)) if statics else None,
            donate_argnums=None,
            donate_argnames=None,
            transformations=transformations,
        ),
    )


def _of_method(statics: Statics, names: tuple[str, ...]) -> Statics:
    """Which arguments are static when the first one is the instance."""
    positions = frozenset(n - 1 if n > 0 else n for n in statics.positions if n != 0)
    return statics._replace(positions=positions, names=statics.names - set(names[:1]))


def _spelled(name: str, given: dict[str, Any]) -> Transformation:
    try:
        return transformation(name, given)
    except NotSpelled as error:
        raise ConfigurationError(
            f"an option of {name} cannot be part of a key: {error}. Use numbers, text, and "
            f"tuples, lists and dicts of them; or transform the function itself: "
            f"persistent_call(jax.{name}(f, …))."
        ) from error
