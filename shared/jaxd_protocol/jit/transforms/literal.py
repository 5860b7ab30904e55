"""A transformation as a literal: equal exactly when name and options are.

(name, ((option, value), …))
value: ("value", literal), or ("tuple" | "list" | "dict", items); items of a dict are pairs

What is done to the method that a function is on an instance is one transformation of the function,
`on_instance`, whose option `by` has them all.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.pytree.literals import Literal, dump_literal, is_literal

Transformation = Literal
"""What `transformation` returns."""

ON_INSTANCE: Final = "on_instance"
"""Name of the transformation that holds those of a method."""

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


def behind_on_instance(
    transformations: tuple[Transformation, ...], one: Transformation
) -> tuple[Transformation, ...]:
    """A list of transformations with one more: of the method that the function is, bound."""
    last = options_of(transformations[-1]) if transformations else ("", {})
    if last[0] != ON_INSTANCE:
        return (*transformations, transformation(ON_INSTANCE, {"by": (one,)}))
    return (*transformations[:-1], transformation(ON_INSTANCE, {"by": (*last[1]["by"], one)}))


def shown_name(function: str, transformations: Sequence[Transformation]) -> str:
    """What people call a transformed function: `vmap(grad(step))`."""
    for name, _ in _each(transformations):
        if name != "flat":  # which changes how it is called, and not what it does
            function = f"{name.removeprefix(_FLAT)}({function})"
    return function


def shown(transformations: Sequence[Transformation]) -> str:
    """A list of transformations for people: `grad(argnums=1), vmap`.

    Of those that jax asks for, the names: their options say nothing to anybody.
    """
    return ", ".join(_shown(one) for one in _each(transformations) if one[0] != "flat") or "none"


def _each(transformations: Sequence[Transformation]) -> Iterator[Transformation]:
    for one in transformations:
        if one[0] == ON_INSTANCE:
            yield from options_of(one)[1]["by"]
        else:
            yield one


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
