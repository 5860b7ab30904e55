"""Which arguments of a function are static, inferred from its signature as `jax.jit` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxd_protocol.calls import Options

__all__ = ["NO_STATICS", "Statics", "statics_of"]


class Statics(NamedTuple):
    """Static positions and keyword names.

    Attributes:
        positions: indexes of positional arguments, never negative.
        names: names of keyword arguments.
    """

    positions: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.positions or self.names)


NO_STATICS = Statics()


def statics_of(function: Callable[..., Any], options: Options) -> Statics:
    """The static arguments of `function` under `options`.

    Given only positions, the names follow from the signature, and the other way round. Where
    there is no signature, or both are given, they count as they are.
    """
    nums, names = options.static_argnums, options.static_argnames
    if nums is None and names is None:
        return NO_STATICS
    parameters = _parameters(function)
    if nums is None and parameters is not None:
        nums = tuple(i for i, (name, _) in enumerate(parameters) if name in (names or ()))
    count = len(parameters or ())
    positions = frozenset(n + count if n < 0 else n for n in nums or ())
    if names is None and parameters is not None:
        names = tuple(
            name for i, (name, by_name) in enumerate(parameters) if by_name and i in positions
        )
    return Statics(positions, frozenset(names or ()))


def _parameters(function: Callable[..., Any]) -> list[tuple[str, bool]] | None:
    """Name of each parameter that can be given by position, and whether also by name."""
    import inspect

    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        (p.name, p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for p in found
        if p.kind in by_position
    ]
