"""What to do about a function that is compiled more often than its author can have meant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jaxd_protocol.errors import JaxdError
from jaxd_protocol.explain.argument_shapes import ArgumentShape
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_protocol.pytree.leaves import itemsize_of
from jaxd_server.compilation.history.build_history import KeyHistory
from jaxd_server.compilation.history.reasons import key_differences

MANY_VALUES: Final = 5
MANY_SHAPES: Final = 8
LARGE_BYTES: Final = 1 << 20

_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+|inf|nan)(e[-+]?\d+)?j?")
_ARRAY: Final = re.compile(r"(\w+)\[([\d,]*)\]")


class Advice(NamedTuple):
    """One thing that would make a function compile less.

    Attributes:
        kind: `scalar`, `static`, `undeclared`, `shapes` or `array`.
        function: the name of the function.
        subject: what it is about: ``global LR``, ``argument x``.
        text: what is wrong, and what to do.
    """

    kind: str
    function: str
    subject: str
    text: str


def advice_for(record: KeyHistory, versions: Sequence[KeyHistory]) -> list[Advice]:
    """The advice about a function.

    Args:
        record: what was built under its key.
        versions: the records of functions with its name, itself included.
    """
    return [
        *_many_values(record.description, versions),
        *_many_shapes(record),
        *_many_static_values(record),
        *_large_arrays(record.description),
    ]


def _many_values(described: FunctionDescriptor, versions: Sequence[KeyHistory]) -> Iterator[Advice]:
    """For a number that is all that differs between many keys."""
    values: dict[str, set[str]] = {}
    differences = (key_differences(version.description, described) for version in versions)
    for one in (found[0] for found in differences if len(found) == 1):
        if one.kind == "value" and _NUMBER.fullmatch(one.before) and _NUMBER.fullmatch(one.after):
            values.setdefault(one.name, {one.after}).add(one.before)
    for name, seen in values.items():
        if len(seen) >= MANY_VALUES:
            yield Advice(
                "scalar",
                described.name,
                name,
                f"{name} has had {len(seen)} values in {len(seen)} keys of "
                f"{described.short_name}, each compiled anew: pass it as an argument, then one "
                "program serves all.",
            )


def _many_shapes(record: KeyHistory) -> Iterator[Advice]:
    """For an argument whose shape changes from call to call."""
    name = record.description.short_name
    for path, forms in _forms_by_path(record, "leaf").items():
        shapes = [form.text for form in forms if _ARRAY.match(form.text)]
        if len(shapes) >= MANY_SHAPES:
            yield Advice(
                "shapes",
                record.description.name,
                f"argument {path}",
                f"{name} has been compiled for {len(shapes)} shapes of argument {path} "
                f"({', '.join(shapes[:2])}, …): pad it to a few sizes, such as powers of two, and "
                "mask the rest, or collect inputs of one size; each new shape is a new program.",
            )


def _many_static_values(record: KeyHistory) -> Iterator[Advice]:
    """For what is static and has another value in each call."""
    name = record.description.short_name
    declared = _declared(record.description)
    for path, forms in _forms_by_path(record, "static").items():
        numbers = [form.text for form in forms if _NUMBER.fullmatch(form.text)]
        if path not in declared and len(forms) >= MANY_SHAPES:
            shown = list(dict.fromkeys(form.text for form in forms))[:2]
            yield Advice(
                "undeclared",
                record.description.name,
                f"argument {path}",
                f"{name} has been compiled for {len(forms)} values of argument {path} "
                f"({', '.join(shown)}, …), which jax cannot trace, so that each value has a "
                "program of its own: pass what changes from call to call as numbers or arrays, "
                "such as the index of a choice for jax.lax.switch.",
            )
        elif len(numbers) >= MANY_SHAPES:
            yield Advice(
                "static",
                record.description.name,
                f"argument {path}",
                f"{name} has been compiled for {len(numbers)} values of its static argument {path} "
                f"({', '.join(numbers[:2])}, …): unless it decides about shapes or branches, take "
                "it out of static_argnums and static_argnames, then one program serves all.",
            )


def _declared(described: FunctionDescriptor) -> set[str]:
    """Names of the arguments that are declared static."""
    nums, names = described.options.static_argnums, described.options.static_argnames
    count = len(described.parameters)
    positions = {n + count if n < 0 else n for n in nums or ()}
    return {*(names or ()), *(p for i, p in enumerate(described.parameters) if i in positions)}


def _forms_by_path(record: KeyHistory, kind: str) -> dict[str, dict[ArgumentShape, None]]:
    """For each place in the arguments, what stood there, in order of appearance."""
    found: dict[str, dict[ArgumentShape, None]] = {}
    leaves = (
        (name + path, leaf)
        for built in record.built
        for name, argument in built.arguments.items()
        for path, leaf in argument.form.leaves()
        if leaf.kind == kind
    )
    for path, leaf in leaves:
        found.setdefault(path, {})[leaf] = None
    return found


def _large_arrays(described: FunctionDescriptor) -> Iterator[Advice]:
    for part in described.parts:
        size = _nbytes(part) if part.kind == "array" else 0
        if size >= LARGE_BYTES:
            yield Advice(
                "array",
                described.name,
                part.name,
                f"{described.short_name} reads {part.name} ({part.shown}, {size / 1e6:.1f} MB): "
                "pass it as an argument; as it is, it is hashed, sent with the code and built into "
                "the program.",
            )


def _nbytes(part: Part) -> int:
    match = _ARRAY.match(part.shown)
    if match is None:
        return 0
    dtype, dimensions = match.groups()
    try:
        return math.prod(int(n) for n in dimensions.split(",") if n) * itemsize_of(dtype)
    except JaxdError:  # a dtype that is none of numpy's
        return 0
