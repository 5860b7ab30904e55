from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings

from jaxd_protocol.pytree import INLINE_BYTES, TreeEncoder
from tests.shared.pytree.samples import (
    Encoder,
    Keys,
    Point,
    Weak,
    decode,
    encode,
    exact,
    signature,
    trees,
)

NAN_WITH_PAYLOAD = np.array([0x7FF8DEADBEEF0001, 0xFFF0000000000001], "u8").view("f8")


@pytest.mark.slow
@settings(max_examples=250)
@given(trees)
@example(NAN_WITH_PAYLOAD)
@example([float(NAN_WITH_PAYLOAD[0]), -0.0, complex(-0.0, 0.0)])
@example({"nested": {"deep": [(), {}, [], OrderedDict()]}})
@example([np.zeros(INLINE_BYTES, "u1"), np.zeros(INLINE_BYTES + 1, "u1")])
def test_a_tree_comes_back_to_the_last_bit(tree: Any) -> None:
    """Structure, types, keys, dtypes and bits."""
    assert exact(decode(encode(tree))) == exact(tree)


@pytest.mark.slow
@settings(max_examples=250)
@given(trees, trees)
def test_skeletons_are_equal_exactly_when_signatures_are(one: Any, other: Any) -> None:
    """So their bytes can stand for the signature."""
    same = signature(one) == signature(other)
    assert (encode(one).skeleton == encode(other).skeleton) == same


def zeros(shape: tuple[int, ...], dtype: Any = "f4") -> Any:
    return np.zeros(shape, dtype)


DIFFERENT: list[Any] = [
    *(None, (), [], {}, OrderedDict(), 0, 0.0, False, 0j, "", b"", "0", 1 << 63, 1 << 64),
    *((0,), [0], ((),), (0, ()), ((0,),), (0, 0), Point(0, 0)),
    *({"a": 0}, {"b": 0}, {b"a": 0}, {1: 0}, {True: 0}, {1.0: 0}, {("a",): 0}),
    *({"a": 0, "b": 0}, {"b": 0, "a": 0}, {"a": {"b": 0}}, OrderedDict(a=0)),
    *map(zeros, [(), (1,), (1, 1), (0, 1), (1, 0), (5000,), (50, 100)]),
    *(zeros((1,), dtype) for dtype in ("f8", "i4", "u4", "f2", ml_dtypes.bfloat16)),
    Weak(zeros(())),
    Keys("threefry2x32", zeros((2,), "u4")),
    Keys("rbg", zeros((2,), "u4")),
    Keys("rbg", zeros((4,), "u4")),
    zeros((2,), "u4"),
]


def test_trees_that_differ_have_different_skeletons() -> None:
    """One that were the same would hand a user another function's result."""
    skeletons = {encode(tree).skeleton for tree in DIFFERENT}
    assert len(skeletons) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0, (1 << 63) - 1),
        (0.0, float("nan")),
        (0j, 1 + 2j),
        (False, True),
        (zeros((3,)), np.ones(3, "f4")),
        (zeros((5000,)), np.ones(5000, "f4")),
        (Keys("rbg", zeros((4,), "u4")), Keys("rbg", np.ones(4, "u4"))),
    ],
)
def test_data_does_not_show_in_the_skeleton(one: Any, other: Any) -> None:
    """A new value compiles nothing."""
    assert encode([one]).skeleton == encode([other]).skeleton
    assert exact(decode(encode([other]))) == exact([other])


def test_a_large_array_is_not_copied() -> None:
    """It is sent from where it lies."""
    array = np.zeros(INLINE_BYTES, "u2")
    encoder = encode([array])
    array[5] = 7
    assert encoder.blob == b""
    assert np.shares_memory(encoder.buffers[0], array)
    assert exact(decode(encoder)) == exact([array])


def test_a_small_array_is_copied() -> None:
    """Later changes do not show."""
    array = np.zeros(3)
    encoder = encode(array)
    array[:] = 1
    assert exact(decode(encoder)) == exact(np.zeros(3))


def test_an_array_that_is_only_bytes_looks_like_one_of_numpy() -> None:
    """A process without numpy can send it on."""
    for size in (3, 5000):
        array = np.arange(size, dtype="f4")
        encoder = TreeEncoder()
        encoder.raw_array("float32", (size,), memoryview(array.tobytes()))
        assert encoder.skeleton == encode(array).skeleton
        assert exact(decode(encoder)) == exact(array)


def test_several_trees_share_their_data() -> None:
    """One after the other, without knowing of each other."""
    encoder = Encoder()
    for tree in (1.0, [zeros((2,))], True):
        encoder.node(tree)
    alone = b"".join(encode(tree).skeleton for tree in (1.0, [zeros((2,))], True))
    assert encoder.skeleton == alone
    assert len(encoder.blob) == 33


@pytest.mark.parametrize("value", [object(), {1, 2}, defaultdict(int), range(3), print, 1 + 0j])
def test_what_has_no_place_is_left_to_subclasses(value: Any) -> None:
    """The base class takes what is plain, and nothing that only looks like it."""
    if isinstance(value, complex):
        assert decode(encode(value)) == value
        return
    with pytest.raises(TypeError, match="has no place in a tree"):
        encode([value])


def test_keys_that_are_not_plain_are_left_to_subclasses() -> None:
    """They cannot be read at the other end without code."""
    with pytest.raises(TypeError, match="plain values"):
        encode({object(): 1})
