from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pytree import dump_literal, is_literal, load_literal
from jaxd_protocol.pytree.literals import plain_number
from tests.shared.pytree.samples import exact, floats

literals: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.just(...)
    | st.integers()
    | floats
    | st.builds(complex, floats, floats)
    | st.text(st.characters(codec=None), max_size=9)
    | st.binary(max_size=9),
    lambda items: st.lists(items, max_size=5).map(tuple),
)


@given(literals)
@example(-0.0)
@example(1 << 20_000)
@example(-(1 << 63))
@example("lone surrogates \udce9 as in odd file names")
def test_a_literal_comes_back_to_the_last_bit(value: Any) -> None:
    """Type and value, also a NaN's payload and the sign of a zero."""
    data = dump_literal(value)
    found, end = load_literal(b"before" + data + b"behind", 6)
    assert exact(found) == exact(value)
    assert end == 6 + len(data)
    assert is_literal(value)


@given(literals, literals)
@example(1, True)
@example(1, 1.0)
@example(0.0, -0.0)
@example("a", b"a")
@example((), None)
@example(("ab",), ("a", "b"))
@example((1, (2,)), ((1,), 2))
def test_bytes_are_equal_exactly_when_type_and_value_are(one: Any, other: Any) -> None:
    """They stand in a signature, where `1`, `True` and `1.0` differ."""
    assert (dump_literal(one) == dump_literal(other)) == (exact(one) == exact(other))


@pytest.mark.parametrize("value", [[], {}, object(), {1}, frozenset(), range(3), bytearray(b"a")])
def test_anything_else_is_no_literal(value: object) -> None:
    """Also inside of one."""
    for item in (value, (value,), (1, ("a", value))):
        assert not is_literal(item)
        with pytest.raises(TypeError, match="not a plain value"):
            dump_literal(item)


def test_subclasses_are_no_literals() -> None:
    """They may mean more than their value."""

    class Name(str):
        __slots__ = ()

    class Number(int):
        pass

    for value in (Name("a"), Number(1)):
        assert not is_literal(value)
        with pytest.raises(TypeError):
            dump_literal(value)


def bomb(depth: int) -> bytes:
    """A tuple in a tuple in a tuple."""
    return (b"t" + struct.pack("!I", 1)) * depth + b"0"


@given(st.binary(max_size=60) | st.lists(st.sampled_from(b"tis\0\1\2yfc0"), max_size=60).map(bytes))
@example(b"")
@example(b"i\0\0\0\0")
@example(b"i\0\0\0\x031_0")
@example(b"s\0\0\0\1\xff")
@example(b"y\xff\xff\xff\xff")
@example(b"t\xff\xff\xff\xff" + b"0" * 50)
@example(bomb(100_000))
def test_garbage_is_refused_in_our_own_words(data: bytes) -> None:
    """Nothing else comes out, and no more memory is taken than was sent."""
    try:
        value, end = load_literal(data, 0)
    except ProtocolError:
        return
    assert end <= len(data)
    assert is_literal(value)


class Size(IntEnum):
    TWO = 2


class Metres(float):
    """A number with a way of its own to say what it is."""

    def __float__(self) -> float:
        return 0.0


class Phase(complex):
    """A complex one."""


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Size.TWO, 2), (Metres(2.5), 2.5), (Phase(1j), 1j), (3, 3), ("2", None), (None, None)],
)
def test_a_number_is_the_number_that_it_is(value: Any, plain: Any) -> None:
    """Of exactly its own plain type; what is none is None."""
    found = plain_number(value)
    assert (type(found), found) == (type(plain), plain)
