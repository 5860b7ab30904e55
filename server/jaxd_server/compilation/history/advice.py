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
_SCALAR: Final = re.compile(r"(float|int|complex)(?:(\d+)\[\])?( \(weak\))?")
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


class NeedlessBuilds(NamedTuple):
    """Programs of one function that need not have been made.

    Attributes:
        advice: what to do.
        programs: how many.
        seconds: what the cheapest so many of them took.
    """

    advice: Advice
    programs: int
    seconds: float


def needless_builds(
    record: KeyHistory, versions: Sequence[KeyHistory] = ()
) -> Iterator[NeedlessBuilds]:
    """What was built for no good reason, with what that took.

    Args:
        record: what was built under one key.
        versions: as for `advice_for`; none, where those of another key of that name are looked at.
    """
    own = [built.seconds for built in record.built]
    forms = {**_forms_by_path(record, "leaf"), **_forms_by_path(record, "static")}
    for advice in (*_many_shapes(record), *_many_static_values(record)):
        count = len(forms[advice.subject.removeprefix("argument ")]) - 1
        yield NeedlessBuilds(advice, count, _cheapest(own, count))
    for advice, count in _weak_types(record):
        yield NeedlessBuilds(advice, count, _cheapest(own, count))
    seconds = [version.built[0].seconds for version in versions]
    for advice, values in _many_values(record.description, versions):
        yield NeedlessBuilds(advice, values - 1, _cheapest(seconds, values - 1))


def _cheapest(seconds: Sequence[float], count: int) -> float:
    return sum(sorted(seconds)[:count])


def _weak_types(record: KeyHistory) -> Iterator[tuple[Advice, int]]:
    """For an argument that is a number of Python's in one call and an array in another."""
    name = record.description.short_name
    for path, forms in _forms_by_path(record, "leaf").items():
        found: dict[str, set[bool]] = {}
        for kind, is_weak in filter(None, map(_scalar, forms)):
            found.setdefault(kind, set()).add(is_weak)
        count = sum(len(each) > 1 for each in found.values())
        if count:
            text = (
                f"{name} has been compiled for argument {path} as a number of Python's, whose "
                "dtype gives way to that of others, and as an array of its own dtype: pass "
                "always the same, such as numpy.float32(x), then one program serves both."
            )
            yield Advice("weak", record.description.name, f"argument {path}", text), count


def _scalar(form: ArgumentShape) -> tuple[str, bool] | None:
    """What kind of number a scalar is, and whether its dtype is weak; None: it is none."""
    match = _SCALAR.fullmatch(form.text)
    return None if match is None else (match[1], match[3] is not None or match[2] is None)


def advice_for(record: KeyHistory, versions: Sequence[KeyHistory]) -> list[Advice]:
    """The advice about a function.

    Args:
        record: what was built under its key.
        versions: the records of functions with its name, itself included.
    """
    return [
        *(advice for advice, _ in _many_values(record.description, versions)),
        *_many_shapes(record),
        *_many_static_values(record),
        *_large_arrays(record.description),
    ]


def _many_values(
    described: FunctionDescriptor, versions: Sequence[KeyHistory]
) -> Iterator[tuple[Advice, int]]:
    """For a number that is all that differs between many keys, with how many values it had."""
    values: dict[str, set[str]] = {}
    differences = (key_differences(version.description, described) for version in versions)
    for one in (found[0] for found in differences if len(found) == 1):
        if one.kind == "value" and _NUMBER.fullmatch(one.before) and _NUMBER.fullmatch(one.after):
            values.setdefault(one.name, {one.after}).add(one.before)
    for name, seen in values.items():
        if len(seen) >= MANY_VALUES:
            text = (
                f"{name} has had {len(seen)} values in {len(seen)} keys of "
                f"{described.short_name}, each compiled again: pass it as an argument, then one "
                "program serves all."
            )
            yield Advice("scalar", described.name, name, text), len(seen)


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
                "mask the rest, which `bucket=` does, or collect inputs of one size; each new "
                "shape is a new program.",
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
