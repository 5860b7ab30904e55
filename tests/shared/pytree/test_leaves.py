from __future__ import annotations

import struct
import sys
from itertools import product

import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError, ProtocolError
from jaxd_protocol.pytree import INLINE_BYTES, Leaf, LeafOffset, parse_skeleton, read_scalar
from jaxd_protocol.pytree.leaves import (
    NO_OFFSET,
    SCALAR_FORMATS,
    WIDE_DTYPES,
    array_spec,
    dtype_of,
    itemsize_of,
    lay_out_leaves,
    load_spec,
    no_derivative,
    numpy_leaf,
    spec_bytes,
)
from tests.ids import row
from tests.shared.pytree.samples import DTYPES


def test_small_items_lie_in_rows_and_large_ones_beside() -> None:
    """The place of each follows from the leaves alone."""
    small, large = Leaf("A", "float32", (3,)), Leaf("A", "float32", (5000,))
    at_the_limit = Leaf("A", "uint8", (INLINE_BYTES,))
    leaves = [Leaf("F"), small, large, Leaf("B"), Leaf("P", buffers=2), at_the_limit, large]
    whole = lay_out_leaves(leaves)
    _, found, blob_bytes, buffers, here, sizes = whole
    assert list(found) == [
        LeafOffset(offset=0, size=8),
        LeafOffset(offset=16, size=12),
        LeafOffset(buffer=0),
        LeafOffset(offset=32, size=1),
        LeafOffset(buffer=1),
        LeafOffset(offset=48, size=INLINE_BYTES),
        LeafOffset(buffer=4),
    ]
    assert (blob_bytes, buffers) == (48 + INLINE_BYTES, 5)
    assert (here, sizes) == (tuple(range(7)), ((0, 20_000), (4, 20_000)))
    assert lay_out_leaves([]) == ((), (), 0, 0, (), ())
    part = lay_out_leaves(leaves, {0, 2, 3})
    assert (part.here, part.sizes) == ((1, 4, 5, 6), ((3, 20_000),))
    assert part.places[0] is part.places[2] is NO_OFFSET


def test_a_number_is_read_where_it_lies() -> None:
    """With its type."""
    rows: list[complex] = [-0.0, 1.5, -(1 << 63), (1 << 63) - 1, True, False, 2 - 3j]
    for value in rows:
        with row(value):
            tag = {float: "F", int: "I", bool: "B", complex: "C"}[type(value)]
            parts = (value.real, value.imag) if tag == "C" else (value,)
            blob = bytes(16) + SCALAR_FORMATS[tag].pack(*parts)
            found = read_scalar(tag, blob, 16)
            assert type(found) is type(value)
            assert repr(found) == repr(value)


def test_a_dtype_is_found_by_its_name() -> None:
    """Those of `ml_dtypes` too; the usual sizes are known without numpy."""
    for dtype in DTYPES:
        with row(dtype):
            assert dtype_of(dtype.name) == dtype
            assert itemsize_of(dtype.name) == dtype.itemsize


NO_DTYPES = [
    "", "object", "str", "bytes", "void", "datetime64", "timedelta64",
    "f4", "<f4", "f4,f4", "(2,)f4", "f4,,", "M8[s]", "S",
    "a", "int", "finfo", "iinfo", "no_such", "__name__", "\0",
]  # fmt: skip


def test_what_is_no_plain_number_is_no_dtype() -> None:
    """Whatever numpy would make of the text."""
    for name in NO_DTYPES:
        with row(name), pytest.raises(ProtocolError, match="is not the name of a dtype"):
            dtype_of(name)


def test_a_dtype_that_needs_a_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match="pip install ml_dtypes"):
        dtype_of.__wrapped__("float6_e2m3fn_unheard_of")


def test_an_array_that_is_not_numbers_does_not_go_to_jax() -> None:
    """The message says what to do."""
    rows: list[str] = ["O", "S3", "U2", "M8[s]", "m8[s]", "f4,i4"]
    for dtype in rows:
        with (
            row(dtype),
            pytest.raises(ArgumentError, match=r"Convert it to numbers.*static_argnames"),
        ):
            array_spec(np.dtype(dtype), (2,))


def test_an_array_is_described_and_read() -> None:
    """Name, shape, whether it is weak or of jax and of 64 bits, and how many bytes it has."""
    shapes, either = [(), (0,), (3, 4), (1,) * 64], [True, False]
    for dtype, shape, weak, is_jax in product(DTYPES, shapes, either, either):
        spec, size = array_spec(dtype, shape, weak, is_jax)
        exact = is_jax and not weak and dtype.name in WIDE_DTYPES
        assert load_spec(spec, 1) == (dtype.name, shape, weak, exact, len(spec))
        assert size == np.empty(shape, dtype).nbytes
        assert Leaf("A", dtype.name, shape).nbytes == size


def test_an_array_that_a_peer_with_another_protocol_describes_is_refused() -> None:
    """By a bit that has no meaning."""
    spec = bytearray(spec_bytes("A", "float32", (3,)))
    spec[1] = 4
    with pytest.raises(ProtocolError, match="protocol"):
        load_spec(bytes(spec), 1)


def test_a_shape_that_numpy_cannot_have_is_refused() -> None:
    """Before its size is computed."""
    rows: list[tuple[int, ...]] = [(1 << 63, 2), (0, 1 << 63), (1 << 20,) * 10, (1,) * 65]
    for shape in rows:
        with row(shape), pytest.raises(ProtocolError, match="shape"):
            load_spec(spec_bytes("A", "float32", shape), 1)


def test_a_description_that_is_cut_short_is_noticed() -> None:
    """At whatever byte."""
    spec = spec_bytes("A", "float32", (3, 4))
    for end in range(1, len(spec)):
        with pytest.raises((struct.error, UnicodeDecodeError)):
            load_spec(spec[:end], 1)


def test_an_array_is_a_view_of_what_arrived() -> None:
    """In the blob or in a buffer, nothing is copied."""
    rows: list[str] = ["A", "K"]
    for tag in rows:
        for dtype in DTYPES:
            with row((tag, dtype)):
                expected = np.arange(6).astype(dtype).reshape(2, 3)
                leaf, data = Leaf(tag, dtype.name, (2, 3)), expected.tobytes()
                blob, buffer = bytes(16) + data, memoryview(bytearray(data))
                for array in (
                    numpy_leaf(leaf, LeafOffset(offset=16), blob, []),
                    numpy_leaf(leaf, LeafOffset(buffer=1), b"", [memoryview(b""), buffer]),
                ):
                    assert (array.dtype, array.shape) == (dtype, (2, 3))
                    assert array.tobytes() == data
                    assert array.base is not None


def test_only_a_buffer_of_its_own_is_writable() -> None:
    """The blob belongs to all that lies in it."""
    leaf, buffer = Leaf("A", "uint8", (3,)), memoryview(bytearray(3))
    assert not numpy_leaf(leaf, LeafOffset(offset=0), b"abc", []).flags.writeable
    numpy_leaf(leaf, LeafOffset(buffer=0), b"", [buffer])[:] = 7
    assert bytes(buffer) == b"\7\7\7"


def test_an_array_may_be_empty_or_have_no_dimensions() -> None:
    """Also at the very end of the blob."""
    rows: list[tuple[int, ...]] = [(0,), (0, 5), ()]
    for shape in rows:
        with row(shape):
            data = bytes(8) if shape == () else b""
            array = numpy_leaf(Leaf("A", "float64", shape), LeafOffset(offset=0), data, [])
            assert array.shape == shape


def test_what_has_no_derivative_has_no_data() -> None:
    """As jax has it, of any shape; it is no leaf."""
    import jax
    import numpy as np

    array = no_derivative((2, 3))
    assert (array.dtype, array.shape, array.nbytes) == (jax.dtypes.float0, (2, 3), 0)
    layout = parse_skeleton(b"T\0\0\0\2F" + spec_bytes("Z", "float0", (2,)), lambda *_: tuple)
    value, nothing = layout.build([1.5])
    assert (value, nothing.dtype, nothing.shape) == (1.5, np.dtype([("float0", "V")]), (2,))
    assert [leaf.tag for leaf in layout.leaves] == ["F"]
