"""Which arguments of a function are static, inferred from its signature as `jax.jit` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxd_protocol.jit.options import Options


class StaticArgs(NamedTuple):
    """Static positions and keyword names, and what becomes of other things that are no data.

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


def infer_static_args(function: Callable[..., Any], options: Options) -> StaticArgs:
    """The static arguments of `function` under `options`.

    Given only positions, the names follow from the signature, and the other way round. Where
    there is no signature, or both are given, they count as they are. No name follows from a
    negative position.
    """
    nums, names, strict = options.static_argnums, options.static_argnames, options.static == "jax"
    if nums is None and names is None:
        return StaticArgs(strict=True) if strict else NO_STATIC_ARGS
    parameters = _parameters(function)
    if nums is None and parameters is not None:
        nums = tuple(i for i, (name, _) in enumerate(parameters) if name in (names or ()))
    positions = frozenset(nums or ())
    if names is None and parameters is not None:
        names = tuple(
            name for i, (name, by_name) in enumerate(parameters) if by_name and i in positions
        )
    return StaticArgs(positions, frozenset(names or ()), strict)


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
