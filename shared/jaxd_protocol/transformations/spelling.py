"""A transformation as a literal: equal exactly when name and options are.

(name, ((option, value), …))
value: ("value", literal), or ("tuple" | "list" | "dict", items); items of a dict are pairs
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.trees.literals import Literal, dump_literal, is_literal

__all__ = ["NotSpelled", "Transformation", "options_of", "shown", "shown_name", "transformation"]

Transformation = Literal
"""What `transformation` returns."""

_FLAT: Final = "flat_"


class NotSpelled(TypeError):
    """A value has no place in a key."""


def transformation(name: str, options: Mapping[str, Any]) -> Transformation:
    """The literal for a transformation.

    Raises:
        NotSpelled: when an option is neither a plain value nor a tuple, list or dict of such.
    """
    return name, tuple((option, _frozen(value)) for option, value in sorted(options.items()))


def options_of(literal: Transformation) -> tuple[str, dict[str, Any]]:
    """Name and options of a transformation."""
    name, options = literal
    return name, {option: _thawed(value) for option, value in options}


def shown_name(function: str, transformations: Sequence[Transformation]) -> str:
    """What people call a transformed function: `vmap(grad(step))`."""
    for name, _ in transformations:
        if name != "flat":  # which changes how it is called, and not what it does
            function = f"{name.removeprefix(_FLAT)}({function})"
    return function


def shown(transformations: Sequence[Transformation]) -> str:
    """A list of transformations for people: `grad(argnums=1), vmap`.

    Of those that jax asks for, the names: their options say nothing to anybody.
    """
    return ", ".join(_shown(one) for one in transformations if one[0] != "flat") or "none"


def _shown(literal: Transformation) -> str:
    name, options = options_of(literal)
    if name.startswith(_FLAT):
        return str(name.removeprefix(_FLAT))
    told = [f"{option}={value!r}" for option, value in options.items() if value]
    return f"{name}({', '.join(told)})" if told else str(name)


def _frozen(value: Any) -> Literal:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind.__name__, tuple(map(_frozen, value))
    if kind is dict:
        pairs = [(_frozen(key), _frozen(child)) for key, child in value.items()]
        return "dict", tuple(sorted(pairs, key=dump_literal))
    if is_literal(value):
        return "value", value
    with suppress(TypeError):  # a number of numpy's, which names an axis or an argument
        return "value", operator.index(value)
    raise NotSpelled(f"{kind.__name__} is not a plain value")


def _thawed(literal: Literal) -> Any:
    kind, content = literal
    if kind == "dict":
        return {_thawed(key): _thawed(child) for key, child in content}
    if kind == "value":
        return content
    items = map(_thawed, content)
    return list(items) if kind == "list" else tuple(items)
