"""Which arguments of a function are static, inferred from its signature as `jax.jit` does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd_protocol.jit.options import Options

if TYPE_CHECKING:
    from inspect import Parameter


class StaticArgs(NamedTuple):
    """Static positions and keyword names, and how other arguments that are no data are treated.

    Attributes:
        positions: indexes of positional arguments; negative ones count from a call's last one.
        names: names of keyword arguments.
        strict: whether only these are static. If not, so is whatever jax cannot trace, such as
            text, wherever in the arguments it stands.
    """

    positions: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    strict: bool = False

    def __bool__(self) -> bool:
        return bool(self.positions or self.names)

    def at(self, count: int) -> frozenset[int]:
        """The static positions of a call with so many positional arguments.

        Raises:
            ValueError: when a negative one is before the first.
        """
        first = min(self.positions, default=0)
        if first >= 0:
            return self.positions
        if first < -count:
            raise ValueError(
                "Positional argument indices, e.g. for `static_argnums`, must have value greater "
                "than or equal to -len(args) and less than len(args), but got value "
                f"{first} for len(args) == {count}."
            )
        return frozenset(n + count if n < 0 else n for n in self.positions)


NO_STATIC_ARGS = StaticArgs()


def dynamic(
    arguments: tuple[tuple[Any, ...], dict[str, Any]], statics: StaticArgs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that are traced: what an executable is called with."""
    args, kwargs = arguments
    if not statics:
        return args, kwargs
    positions = statics.at(len(args))
    return (
        tuple(value for i, value in enumerate(args) if i not in positions),
        {name: value for name, value in kwargs.items() if name not in statics.names},
    )


def map_arguments(
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    statics: StaticArgs,
    traced: Callable[[Any], Any],
    static: Callable[[Any], Any] = lambda value: value,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `traced` or `static` applied to each, in their order."""
    args, kwargs = arguments
    positions = statics.at(len(args))
    return (
        tuple((static if i in positions else traced)(value) for i, value in enumerate(args)),
        {name: (static if name in statics.names else traced)(kwargs[name]) for name in kwargs},
    )


def infer_static_args(function: Callable[..., Any], options: Options) -> StaticArgs:
    """The static arguments of `function` under `options`.

    Given only positions, the names follow from the signature, and the other way round. Where
    there is no signature, or both are given, they count as they are. No name follows from a
    negative position.
    """
    nums, names, strict = options.static_argnums, options.static_argnames, options.static == "jax"
    if nums is None and names is None:
        return StaticArgs(strict=True) if strict else NO_STATIC_ARGS
    by_position = [
        each
        for each in parameters_of(function)
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if nums is None:
        nums = tuple(i for i, each in enumerate(by_position) if each.name in (names or ()))
    positions = frozenset(nums)
    if names is None:
        names = tuple(
            each.name
            for i, each in enumerate(by_position)
            if i in positions and each.kind is each.POSITIONAL_OR_KEYWORD
        )
    return StaticArgs(positions, frozenset(names), strict)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters in a function's signature; none where it has no signature."""
    import inspect

    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
