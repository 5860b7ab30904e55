"""Values as bytes that no two different values share."""

from __future__ import annotations

import itertools
import math
import struct
from enum import IntEnum
from typing import Any

import pytest

from jaxd_protocol.fingerprint.canonical_bytes import (
    ATOMS,
    DIGEST_SIZE,
    atom,
    constant,
    digest,
    tag,
)
from tests.ids import stable_id

VALUES = [
    *(None, True, False, 0, 1, -1, 10, 1 << 62, -(1 << 62), 1 << 5000, (1 << 5000) + 1),
    *(0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 5e-324),
    *("", "0", "1", "i1:1", "\udcff", "ÿ", "a" * 10, "a" * 11),
    *(b"", b"0", b"s1:1", b"a" * 10),
    *(0j, complex(0.0, -0.0), complex(-0.0, 0.0), 1j, ..., NotImplemented),
]


def test_no_two_atoms_have_the_same_bytes() -> None:
    """Neither equal ones of two types nor the two zeros."""
    found = [atom(value) for value in VALUES]
    assert None not in found
    assert len(set(found)) == len(VALUES)


def test_no_atom_begins_with_another() -> None:
    """So what stands behind each other is never mistaken for something else."""
    found = [data for data in map(atom, VALUES) if data is not None]
    pairs = itertools.permutations(found, 2)
    assert [pair for pair in pairs if pair[0].startswith(pair[1])] == []


def test_the_kinds_of_nan_are_told_apart() -> None:
    """By their bits: a program may keep them."""
    (other,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))
    assert atom(math.nan) != atom(other)


class Level(IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [Level.LOW, Text("a"), [], (), {}, object(), int], ids=stable_id)
def test_what_is_more_than_its_value_is_no_atom(value: Any) -> None:
    """An instance of a subclass, a container, a class."""
    assert atom(value) is None
    assert type(value) not in ATOMS


def no_code(_: Any) -> bytes:
    """There is none among the constants here."""
    raise AssertionError


CONSTANTS: list[Any] = [
    *((), (1,), (1, 2), ((1,), 2), ((1, 2),), (((),),), ((), ()), "(0", 1),
    *(frozenset(), frozenset({1}), frozenset({1, 2}), frozenset({(1, 2)}), (frozenset({1}),)),
    *(slice(1), slice(1, 2), slice(None, 1, 2), (None, 1, None)),
]


def test_no_two_constants_have_the_same_bytes() -> None:
    """However they are nested."""
    assert len({constant(value, no_code) for value in CONSTANTS}) == len(CONSTANTS)


def test_the_order_of_a_set_does_not_count() -> None:
    """It differs from process to process."""
    texts = [f"name {number}" for number in range(50)]
    one, other = frozenset(texts), frozenset(reversed(texts))
    assert constant(one, no_code) == constant(other, no_code)


def test_code_among_constants_counts_by_its_digest() -> None:
    """Of which somebody else knows what it is."""
    code = compile("1", "a", "eval")
    assert constant((code,), lambda _: b"d" * 16) != constant((code,), lambda _: b"e" * 16)


def test_what_no_compiler_makes_is_no_constant() -> None:
    """Such as a list."""
    with pytest.raises(TypeError, match="list is not a constant"):
        constant(([],), no_code)


def test_digests_and_tags_are_bytes_of_their_own() -> None:
    """Sixteen of a digest; a tag begins as no atom does."""
    assert len(digest(b"")) == DIGEST_SIZE == 16
    assert digest(b"a") == digest(bytearray(b"a")) != digest(b"b")
    assert tag("list")[:1] not in {data[:1] for data in map(atom, VALUES) if data}
