"""Trees of every kind that can travel, and what it takes to compare them to the last bit."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from jaxd_protocol.pytree import (
    INLINE_BYTES,
    Layout,
    Leaf,
    LeafOffset,
    TreeEncoder,
    parse_skeleton,
    read_scalar,
)
from jaxd_protocol.pytree.leaves import numpy_leaf


class Point(NamedTuple):
    """A named tuple as users have them."""

    x: Any
    y: Any


class Weak:
    """An array that jax calls weakly typed."""

    def __init__(self, array: Any) -> None:
        self.array = array


class Keys:
    """An array of PRNG keys."""

    def __init__(self, impl: str, data: Any) -> None:
        self.impl = impl
        self.data = data


class Encoder(TreeEncoder):
    """Takes arrays and keys where they stand, as both ends' encoders do."""

    def other(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.array(value)
        elif type(value) is Weak:
            self.array(value.array, weak=True)
        elif type(value) is Keys:
            self.key(value.impl, value.data)
        else:
            super().other(value)


def encode(value: Any) -> Encoder:
    """The encoder, with this one tree in it."""
    encoder = Encoder()
    encoder.node(value)
    return encoder


def find_class(module: str, name: str, fields: tuple[str, ...] | None) -> type:
    """The one class that there is."""
    assert (module, name, fields) == (__name__, "Point", ("x", "y"))
    return Point


def parse(skeleton: bytes) -> Layout:
    """The layout, read as by a client: no code is taken."""
    return parse_skeleton(skeleton, find_class)


def decode(encoder: TreeEncoder) -> Any:
    """The tree again, from what would be sent."""
    layout = parse(encoder.skeleton)
    blob = encoder.blob
    layout.whole.check(blob, encoder.buffers)
    leaves = [
        _read(leaf, place, blob, encoder.buffers)
        for leaf, place in zip(layout.leaves, layout.whole.places, strict=True)
    ]
    return layout.build(leaves)


def _read(leaf: Leaf, place: LeafOffset, blob: bytes, buffers: list[memoryview]) -> Any:
    if leaf.tag not in "AK":
        return read_scalar(leaf.tag, blob, place.offset)
    array = numpy_leaf(leaf, place, blob, buffers)
    if leaf.tag == "K":
        return Keys(leaf.impl, array)
    return Weak(array) if leaf.weak else array


def exact(value: Any) -> Any:
    """Equal for two trees exactly when they are the same in structure, types and bits."""
    kind = type(value)
    if kind is np.ndarray:
        return kind, value.dtype.name, value.shape, value.tobytes()
    if kind is Weak:
        return kind, exact(value.array)
    if kind is Keys:
        return kind, value.impl, exact(value.data)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind in (dict, OrderedDict):
        return kind, tuple((exact(key), exact(child)) for key, child in value.items())
    if kind in (tuple, list, Point):
        return kind, tuple(map(exact, value))
    return kind, value


def signature(value: Any) -> Any:
    """As `exact`, without the data of arrays, keys and numbers."""
    kind = type(value)
    if kind is np.ndarray:
        return kind, value.dtype.name, value.shape
    if kind is Weak:
        return kind, signature(value.array)
    if kind is Keys:
        return kind, value.impl, signature(value.data)
    if kind in (float, complex, bool) or (kind is int and -(1 << 63) <= value < 1 << 63):
        return kind
    if kind in (dict, OrderedDict):
        return kind, tuple((exact(key), signature(child)) for key, child in value.items())
    if kind in (tuple, list, Point):
        return kind, tuple(map(signature, value))
    return exact(value)


DTYPES = [
    *map(np.dtype, ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"]),
    *map(np.dtype, [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]),
]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (0, 5), (2, 0, 1), (1, 1, 1, 1), (700,), (5000,), (70, 60)]


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Any:
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(seed).bytes(size)  # any bits: NaNs of every kind among them
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


_seeds = st.integers(0, 1 << 20)
arrays: st.SearchStrategy[Any] = st.builds(
    _array, st.sampled_from(DTYPES), st.sampled_from(SHAPES), _seeds
)
_key_data = st.builds(
    _array, st.just(np.dtype("u4")), st.sampled_from([(2,), (9, 4), (0, 2)]), _seeds
)
floats: st.SearchStrategy[float] = st.floats() | st.binary(min_size=8, max_size=8).map(
    lambda data: float(struct.unpack("<d", data)[0])
)
scalars: st.SearchStrategy[Any] = (
    floats | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.builds(complex, floats, floats)
)
statics: st.SearchStrategy[Any] = st.none() | st.text(max_size=5) | st.binary(max_size=5)
keys: st.SearchStrategy[Any] = (
    st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.tuples(st.text(max_size=2))
)
leaves: st.SearchStrategy[Any] = (
    arrays
    | arrays.map(Weak)
    | st.builds(Keys, st.sampled_from(["threefry2x32", "rbg"]), _key_data)
    | scalars
    | statics
)
trees: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.builds(Point, children, children)
        | st.dictionaries(keys, children, max_size=4)
        | st.dictionaries(keys, children, max_size=4).map(OrderedDict)
    ),
    max_leaves=8,
)
"""Trees of all that both ends know; some arrays are larger than `INLINE_BYTES`."""

assert any(np.prod(shape) > INLINE_BYTES for shape in SHAPES)
