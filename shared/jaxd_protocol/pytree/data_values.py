"""Values of Python's own types that are nothing but data, as literals and back.

They stand in results where jax does not look: in static fields of dataclasses and in the aux data
of nodes. A kind says how a value is taken apart, and what makes it again of parts that it has
checked. Nothing is looked up by a name that a peer chooses but the kind, in the table below.

    part      an atom of `literals`, or a tuple: a tag and what follows it
    t l       items
    d         key, value, key, value, …
    r         a reference, see `references`
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import types
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from jaxd_protocol.pytree.literals import is_literal

MAX_BITS: Final = 1 << 14
"""Of an integer that is calculated with; numbers with more are not taken."""

_MAX_DEPTH: Final = 32


class DataKind(NamedTuple):
    """A kind of values that are nothing but data.

    Attributes:
        take: the parts of a value.
        make: the value of such parts; raises `TypeError` or `ValueError` when they are none.
    """

    take: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


def check(is_right: bool) -> None:
    """Raises `ValueError` for parts of which nothing can be made."""
    if not is_right:
        raise ValueError("these are no parts of such a value")


def typed(cls: type, *values: Any) -> None:
    """Raises `ValueError` unless all are of exactly that type."""
    check(all(type(value) is cls for value in values))


# parts as literals ------------------------------------------------------------------------------


def dump_parts(parts: Iterable[Any], refer: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    """The parts as a literal.

    Args:
        parts: of a value.
        refer: the literal of the reference to what is no literal.

    Raises:
        LookupError: when there is no reference to one of them.
    """
    return tuple(_dump(part, refer) for part in parts)


def _dump(part: Any, refer: Callable[[Any], tuple[Any, ...]]) -> Any:
    if type(part) in (tuple, list):
        return ("t" if type(part) is tuple else "l", *dump_parts(part, refer))
    if type(part) is dict:
        return ("d", *dump_parts((each for pair in part.items() for each in pair), refer))
    return part if is_literal(part) else ("r", refer(part))


def load_parts(
    parts: Iterable[Any], resolve: Callable[[Any], Any], depth: int = 0
) -> tuple[Any, ...]:
    """The parts in a literal.

    Args:
        parts: what `dump_parts` returned.
        resolve: what a reference leads to.
        depth: how deep they lie in others.

    Raises:
        ValueError: when they are none.
        Exception: what `resolve` raises.
    """
    check(depth < _MAX_DEPTH)
    return tuple(_load(part, resolve, depth + 1) for part in parts)


def _load(part: Any, resolve: Callable[[Any], Any], depth: int) -> Any:
    if type(part) is not tuple:
        return part
    check(len(part) > 0)
    tag, *rest = part
    if tag == "r":
        (reference,) = rest
        return resolve(reference)
    found = load_parts(rest, resolve, depth)
    if tag == "d":
        check(len(found) % 2 == 0)
        return dict(zip(islice(found, 0, None, 2), islice(found, 1, None, 2), strict=True))
    check(tag in ("t", "l"))
    return found if tag == "t" else list(found)


# Python's own types ------------------------------------------------------------------------------


def _range(*bounds: int) -> range:
    typed(int, *bounds)
    return range(*bounds)


def _fraction(numerator: int, denominator: int) -> fractions.Fraction:
    typed(int, numerator, denominator)
    check(max(numerator.bit_length(), denominator.bit_length()) <= MAX_BITS and denominator > 0)
    return fractions.Fraction(numerator, denominator)


def _decimal(sign: int, digits: str, exponent: Any) -> decimal.Decimal:
    typed(str, digits)
    typed(int, sign)
    check(len(digits) <= MAX_BITS and set(digits) <= set("0123456789"))
    check(exponent in ("F", "n", "N") or type(exponent) is int)
    numbers: Any = sign, tuple(map(int, digits)), exponent
    return decimal.Decimal(numbers)


def _decimal_parts(value: decimal.Decimal) -> tuple[Any, ...]:
    sign, digits, exponent = value.as_tuple()
    return sign, "".join(map(str, digits)), exponent


def _path(cls: Any) -> DataKind:
    def make(*parts: str) -> Any:
        typed(str, *parts)
        return cls(*parts)

    return DataKind(lambda value: value.parts, make)


def _timedelta(*amounts: int) -> datetime.timedelta:
    typed(int, *amounts)
    return datetime.timedelta(*amounts)


def _timezone(offset: datetime.timedelta, name: str | None) -> datetime.timezone:
    typed(datetime.timedelta, offset)
    if name is None:
        return datetime.timezone(offset)
    typed(str, name)
    return datetime.timezone(offset, name)


def _timezone_parts(value: datetime.timezone) -> tuple[Any, ...]:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    return offset, *(name or [None])


def _date(*fields: int) -> datetime.date:
    typed(int, *fields)
    return datetime.date(*fields)


def _moment(cls: Any, names: tuple[str, ...]) -> DataKind:
    """A `datetime` or a `time`."""

    def make(zone: datetime.timezone | None, fold: int, *fields: int) -> Any:
        typed(int, fold, *fields)
        if zone is not None:
            typed(datetime.timezone, zone)
        return cls(*fields, tzinfo=zone, fold=fold)

    return DataKind(
        lambda value: (value.tzinfo, value.fold, *(getattr(value, name) for name in names)), make
    )


def _uuid(number: int) -> uuid.UUID:
    typed(int, number)
    return uuid.UUID(int=number)


def _deque(limit: int | None, *items: Any) -> deque[Any]:
    check(limit is None or type(limit) is int)
    return deque(items, limit)


def _one_of(cls: Any, part: type) -> Callable[..., Any]:
    """Makes an instance of one argument of that type."""

    def make(argument: Any) -> Any:
        typed(part, argument)
        return cls(argument)

    return make


def _namespace(attributes: dict[Any, Any]) -> types.SimpleNamespace:
    typed(dict, attributes)
    typed(str, *attributes)
    return types.SimpleNamespace(**attributes)


_TIME: Final = ("hour", "minute", "second", "microsecond")

KINDS: Final[dict[type, DataKind]] = {
    type(NotImplemented): DataKind(lambda _: (), lambda: NotImplemented),
    slice: DataKind(lambda value: (value.start, value.stop, value.step), slice),
    range: DataKind(lambda value: (value.start, value.stop, value.step), _range),
    fractions.Fraction: DataKind(lambda value: (value.numerator, value.denominator), _fraction),
    decimal.Decimal: DataKind(_decimal_parts, _decimal),
    pathlib.PurePosixPath: _path(pathlib.PurePosixPath),
    pathlib.PureWindowsPath: _path(pathlib.PureWindowsPath),
    type(pathlib.Path()): _path(pathlib.Path),
    datetime.timedelta: DataKind(
        lambda value: (value.days, value.seconds, value.microseconds), _timedelta
    ),
    datetime.timezone: DataKind(_timezone_parts, _timezone),
    datetime.date: DataKind(lambda value: (value.year, value.month, value.day), _date),
    datetime.time: _moment(datetime.time, _TIME),
    datetime.datetime: _moment(datetime.datetime, ("year", "month", "day", *_TIME)),
    uuid.UUID: DataKind(lambda value: (value.int,), _uuid),
    frozenset: DataKind(lambda value: (list(value),), _one_of(frozenset, list)),
    set: DataKind(lambda value: (list(value),), _one_of(set, list)),
    bytearray: DataKind(lambda value: (bytes(value),), _one_of(bytearray, bytes)),
    deque: DataKind(lambda value: (value.maxlen, *value), _deque),
    Counter: DataKind(lambda value: (dict(value),), _one_of(Counter, dict)),
    types.MappingProxyType: DataKind(
        lambda value: (dict(value),), _one_of(types.MappingProxyType, dict)
    ),
    types.SimpleNamespace: DataKind(lambda value: (vars(value),), _namespace),
}
"""By the type of the values. On the wire a kind is module and name of that type."""
