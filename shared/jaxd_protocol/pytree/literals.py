"""Plain values by content, as bytes that are equal exactly when type and value are equal.

They write the parts of a signature: dictionary keys, static arguments, class names.

    tag | content, each length-prefixed; nothing here can name a callable
"""

from __future__ import annotations

import struct
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError

Literal = Any
"""None, bool, int, float, complex, str, bytes, Ellipsis, and tuples of these."""

_SIMPLE: Final[dict[Any, bytes]] = {None: b"0", True: b"1", False: b"2", Ellipsis: b"3"}
_SIMPLE_BACK: Final = {ord(tag): value for value, tag in _SIMPLE.items()}
_LENGTH: Final = struct.Struct("!I")
_DOUBLE: Final = struct.Struct("!d")
_COMPLEX: Final = struct.Struct("!dd")
ATOM_TYPES: Final = frozenset({int, float, complex, str, bytes, type(None), bool, type(Ellipsis)})


def is_literal(value: object) -> bool:
    """Whether `dump_literal` takes the value: exact types only, no subclasses."""
    if type(value) is tuple:
        return all(map(is_literal, value))
    return type(value) in ATOM_TYPES


def dump_literal(value: Literal) -> bytes:
    """The canonical bytes of a literal; raises `TypeError` for anything else."""
    kind = type(value)
    if kind is str:
        data: bytes = value.encode("utf-8", "surrogatepass")
        return b"s" + _LENGTH.pack(len(data)) + data
    if value is None or value is True or value is False or value is Ellipsis:
        return _SIMPLE[value]
    if kind is int:
        data = b"%x" % value  # decimal digits are limited to 4300, and slow
        return b"i" + _LENGTH.pack(len(data)) + data
    if kind is float:
        return b"f" + _DOUBLE.pack(value)
    if kind is complex:
        return b"c" + _COMPLEX.pack(value.real, value.imag)
    if kind is bytes:
        return b"".join((b"y", _LENGTH.pack(len(value)), value))
    if kind is tuple:
        return b"t" + _LENGTH.pack(len(value)) + b"".join(map(dump_literal, value))
    raise TypeError(f"{kind.__name__} is not a plain value")


def load_literal(data: bytes, at: int) -> tuple[Literal, int]:
    """The literal that begins at `data[at]`, and where it ends.

    Raises:
        ProtocolError: when there is none.
    """
    try:
        return _load(data, at)
    except (IndexError, struct.error, ValueError, RecursionError) as error:
        raise ProtocolError("a tree holds a plain value that cannot be read.") from error


def _load(data: bytes, at: int) -> tuple[Literal, int]:
    tag = data[at]
    at += 1
    if tag in _SIMPLE_BACK:
        return _SIMPLE_BACK[tag], at
    if tag == ord("f"):
        return _DOUBLE.unpack_from(data, at)[0], at + _DOUBLE.size
    if tag == ord("c"):
        return complex(*_COMPLEX.unpack_from(data, at)), at + _COMPLEX.size
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if tag == ord("t"):
        return _load_tuple(data, at, length)
    end = at + length
    if end > len(data):
        raise IndexError("a plain value is cut off")
    if tag == ord("s"):
        return data[at:end].decode("utf-8", "surrogatepass"), end
    if tag == ord("i"):
        return int(data[at:end], 16), end
    if tag == ord("y"):
        return data[at:end], end
    raise ValueError(f"unknown tag {tag}")


def _load_tuple(data: bytes, at: int, length: int) -> tuple[Literal, int]:
    items = []
    for _ in range(length):
        item, at = _load(data, at)
        items.append(item)
    return tuple(items), at


def plain_number(value: Any) -> Any:
    """The number that an instance of a subclass of `int`, `float` or `complex` is, else None.

    jax traces them, members of an `IntEnum` among them, as the numbers that they are.
    """
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return complex.__complex__(value) if isinstance(value, complex) else None
