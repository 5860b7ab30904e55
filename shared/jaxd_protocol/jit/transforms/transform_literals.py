"""A transformation as a literal: equal exactly when name and options are.

(name, ((option, value), …))
value: ("value", literal), or ("tuple" | "list" | "dict", items); items of a dict are pairs

Transformations of a bound method are one transformation of its function, `on_instance`, whose
option `by` lists them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.pytree.literals import Literal, dump_literal, is_literal

Transformation = Literal
"""What `encode_transformation` returns."""

ON_INSTANCE: Final = "on_instance"
"""Name of the transformation that holds those of a method."""

_FLAT: Final = "flat_"


class NotLiteral(TypeError):
    """A value has no place in a key."""


def encode_transformation(name: str, options: Mapping[str, Any]) -> Transformation:
    """The literal for a transformation.

    Raises:
        NotLiteral: when an option is neither a plain value nor a tuple, list or dict of such.
    """
    return name, tuple((option, _to_literal(value)) for option, value in sorted(options.items()))


def decode_transformation(literal: Transformation) -> tuple[str, dict[str, Any]]:
    """Name and options of a transformation."""
    name, options = literal
    return name, {option: _from_literal(value) for option, value in options}


def with_bound_method(
    transformations: tuple[Transformation, ...], one: Transformation
) -> tuple[Transformation, ...]:
    """A list of transformations with one more, which applies to the function as a bound method."""
    last = decode_transformation(transformations[-1]) if transformations else ("", {})
    if last[0] != ON_INSTANCE:
        return (*transformations, encode_transformation(ON_INSTANCE, {"by": (one,)}))
    return (
        *transformations[:-1],
        encode_transformation(ON_INSTANCE, {"by": (*last[1]["by"], one)}),
    )


def display_name(function: str, transformations: Sequence[Transformation]) -> str:
    """The name of a transformed function for people: `vmap(grad(step))`."""
    for name, _ in _displayed(transformations):
        function = f"{name.removeprefix(_FLAT)}({function})"
    return function


def describe_transformations(transformations: Sequence[Transformation]) -> str:
    """A list of transformations for people: `grad(argnums=1), vmap`.

    Those that the client's jax requests are shown without their options.
    """
    return ", ".join(map(_describe_one, _displayed(transformations))) or "none"


def _displayed(transformations: Sequence[Transformation]) -> Iterator[Transformation]:
    for one in transformations:
        if one[0] == ON_INSTANCE:
            yield from _displayed(decode_transformation(one)[1]["by"])
        elif one[0] != "flat":  # it changes the signature only
            yield one


def _describe_one(literal: Transformation) -> str:
    name, options = decode_transformation(literal)
    if name.startswith(_FLAT):
        return str(name.removeprefix(_FLAT))
    shown = [f"{option}={value!r}" for option, value in options.items() if value]
    return f"{name}({', '.join(shown)})" if shown else str(name)


def _to_literal(value: Any) -> Literal:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind.__name__, tuple(map(_to_literal, value))
    if kind is dict:
        pairs = [(_to_literal(key), _to_literal(child)) for key, child in value.items()]
        return "dict", tuple(sorted(pairs, key=dump_literal))
    if is_literal(value):
        return "value", value
    with suppress(TypeError):  # a number of numpy's, which names an axis or an argument
        return "value", operator.index(value)
    raise NotLiteral(f"{kind.__name__} is not a plain value")


def _from_literal(literal: Literal) -> Any:
    kind, content = literal
    if kind == "dict":
        return {_from_literal(key): _from_literal(child) for key, child in content}
    if kind == "value":
        return content
    items = map(_from_literal, content)
    return list(items) if kind == "list" else tuple(items)
