"""The leaves of a tree: their bytes in the skeleton, and where their data lies.

A leaf's place follows from the skeleton alone. Numbers and small arrays are stored one after the
other in the *blob*, a part of the message; an array above `INLINE_BYTES` is a *buffer* of its own
beside the message.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ArgumentError, ProtocolError

INLINE_BYTES: Final = 4096
"""Arrays up to this size are stored in the message: a buffer of their own would cost more."""

SCALAR_FORMATS: Final = {
    tag: struct.Struct(form) for tag, form in (("F", "<d"), ("I", "<q"), ("B", "<?"), ("C", "<dd"))
}
WIDE_DTYPES: Final = frozenset({"float64", "int64", "uint64", "complex128"})
"""Those that jax narrows where it has none of 64 bits, unless an array is its own already."""
_WEAK, _EXACT = 1, 2
_MAX_RANK: Final = 64  # numpy's own limit
_MAX_ELEMENTS: Final = 1 << 59  # of 16 bytes each: what numpy can address
ALIGNMENT: Final = 16
"""Blob items begin at multiples of this: enough for every dtype."""


class Leaf(NamedTuple):
    """One leaf as the skeleton describes it.

    Attributes:
        tag: `A` array, `K` PRNG key array, `F I B C` Python float, int, bool, complex,
            `P` pickled object (only towards a server).
        dtype: name of the dtype, for `A`; of the key's data, for `K`.
        shape: dimensions, for `A` and `K` (of the key's data).
        weak: whether jax calls the array weakly typed.
        exact: whether jax keeps its 64 bits under any settings: the array is its own already.
        impl: the PRNG implementation of `K`.
        buffers: number of buffers that `P` takes beside its own.
    """

    tag: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    weak: bool = False
    impl: str = ""
    buffers: int = 0
    exact: bool = False

    @property
    def is_jax(self) -> bool:
        """Whether jax has to be given the array as its own: it would take numpy's for another."""
        return self.weak or self.exact

    @property
    def is_narrowed(self) -> bool:
        """Whether jax makes one of 32 bits of the array, where it has none of 64."""
        return self.tag == "A" and self.dtype in WIDE_DTYPES and not self.is_jax

    @property
    def nbytes(self) -> int:
        """Bytes of the array's data, in C order."""
        return math.prod(self.shape) * itemsize_of(self.dtype)


class LeafOffset(NamedTuple):
    """Where a leaf's bytes lie: at `offset` of the blob, in buffer number `buffer`, or neither.

    Attributes:
        offset, buffer: -1 where they lie elsewhere.
        size: how many there are, in the blob.
    """

    offset: int = -1
    buffer: int = -1
    size: int = 0


def aligned(offset: int) -> int:
    """The next place in the blob where an item may begin."""
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


NO_OFFSET: Final = LeafOffset()
"""The place of a leaf whose data is not in the message."""


def leaf_data(place: LeafOffset, blob: bytes, buffers: Sequence[memoryview]) -> memoryview:
    """The bytes of an `A` or `K` leaf, which are in the message."""
    if place.buffer >= 0:
        return buffers[place.buffer]
    return memoryview(blob)[place.offset : place.offset + place.size]


class BlobLayout(NamedTuple):
    """Where the data of some leaves lies in a message.

    Attributes:
        leaves: the leaves.
        places: where each one's bytes lie.
        blob_bytes: size of the blob.
        buffers: number of buffers beside the message.
        here: the numbers of the leaves whose bytes are in the message.
        sizes: the bytes that a buffer has to have, by its number, of those of arrays.
    """

    leaves: tuple[Leaf, ...]
    places: tuple[LeafOffset, ...]
    blob_bytes: int
    buffers: int
    here: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]

    def check(self, blob: bytes, buffers: Sequence[memoryview]) -> None:
        """Proves that the data has the sizes that the leaves ask for.

        Raises:
            ProtocolError: when it has not; reading it would go beyond its end.
        """
        if len(blob) != self.blob_bytes or len(buffers) != self.buffers:
            raise ProtocolError("a tree's data does not fit its skeleton.")
        if any(len(buffers[buffer]) != size for buffer, size in self.sizes):
            raise ProtocolError("an array's buffer does not have the array's size.")


def lay_out_leaves(leaves: Sequence[Leaf], absent: Collection[int] = ()) -> BlobLayout:
    """Where the data of each leaf lies, of those whose numbers are not among the `absent`."""
    found: list[LeafOffset] = []
    end = buffer = 0
    for number, leaf in enumerate(leaves):
        if number in absent:
            found.append(NO_OFFSET)
            continue
        if leaf.tag == "P":
            found.append(LeafOffset(buffer=buffer))
            buffer += 1 + leaf.buffers
            continue
        size = leaf.nbytes if leaf.tag in "AK" else SCALAR_FORMATS[leaf.tag].size
        if size > INLINE_BYTES:
            found.append(LeafOffset(buffer=buffer))
            buffer += 1
        else:
            found.append(LeafOffset(aligned(end), size=size))
            end = aligned(end) + size
    here = tuple([number for number, place in enumerate(found) if place is not NO_OFFSET])
    sizes = tuple(
        (place.buffer, leaf.nbytes)
        for leaf, place in zip(leaves, found, strict=True)
        if place.buffer >= 0 and leaf.tag in "AK"
    )
    return BlobLayout(tuple(leaves), tuple(found), end, buffer, here, sizes)


def read_scalar(tag: str, blob: bytes, offset: int) -> float | int | bool | complex:
    """The Python number that lies at `offset` of the blob."""
    values = SCALAR_FORMATS[tag].unpack_from(blob, offset)
    return complex(*values) if tag == "C" else values[0]


@lru_cache(maxsize=256)
def dtype_of(name: str) -> Any:
    """The numpy dtype of that name, those of `ml_dtypes` included.

    Raises:
        ArgumentError: when it needs `ml_dtypes`, which is not installed.
        ProtocolError: when there is no such dtype.
    """
    import numpy

    if not name.isidentifier() or len(name) < len("int8"):  # a record or an alias, to numpy
        raise ProtocolError(f"{name!r} is not the name of a dtype.")
    try:
        dtype = numpy.dtype(name)
    except TypeError:
        dtype = _extended_dtype(name)
    if dtype.name != name or not _is_number(dtype):
        raise ProtocolError(f"{name!r} is not the name of a dtype of plain numbers.")
    return dtype


def _extended_dtype(name: str) -> Any:
    import numpy

    try:
        import ml_dtypes
    except ImportError as error:
        raise ArgumentError(
            f"an array of dtype {name} needs the package ml_dtypes in this process: "
            "pip install ml_dtypes, or convert it inside the function with .astype('float32')."
        ) from error
    scalar = getattr(ml_dtypes, name, None)
    if not isinstance(scalar, type):
        raise ProtocolError(f"{name!r} is not the name of a dtype.")
    return numpy.dtype(scalar)


_SIZES: Final = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2,
                 "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8,
                 "float64": 8, "complex64": 8, "complex128": 16}  # fmt: skip


def itemsize_of(dtype: str) -> int:
    """Bytes per element. The usual dtypes need no numpy, which a light client may not have."""
    return _SIZES.get(dtype) or int(dtype_of(dtype).itemsize)


def _is_number(dtype: Any) -> bool:
    """Whether jax may have the dtype: numpy's numbers and those of `ml_dtypes`, if it is loaded."""
    return dtype.kind in "biufc" or hasattr(sys.modules.get("ml_dtypes"), dtype.name)


@lru_cache(maxsize=4096)
def array_spec(
    dtype: Any, shape: tuple[int, ...], weak: bool = False, is_jax: bool = False
) -> tuple[bytes, int]:
    """Skeleton bytes and data size of an array with that numpy dtype and shape.

    Args:
        dtype: of numpy.
        shape: dimensions.
        weak: whether jax calls it weakly typed.
        is_jax: whether it is an array of jax.

    Raises:
        ArgumentError: when jax has no such dtype.
    """
    if not _is_number(dtype):
        raise ArgumentError(
            f"an array of dtype {dtype} cannot go to jax. Convert it to numbers first, or "
            "declare the argument in static_argnames if it is not data."
        )
    exact = is_jax and is_exact(dtype.name, weak)
    return spec_bytes("A", dtype.name, shape, weak, exact), math.prod(shape) * dtype.itemsize


def is_exact(dtype: str, weak: bool) -> bool:
    """Whether an array of jax with that dtype has to be marked as `exact`; weak ones need not."""
    return dtype in WIDE_DTYPES and not weak


def spec_bytes(
    tag: str, dtype: str, shape: tuple[int, ...], weak: bool = False, exact: bool = False
) -> bytes:
    """The skeleton bytes of an array leaf: tag, its two bits, dtype name, rank, dimensions."""
    name, bits = dtype.encode(), weak * _WEAK + exact * _EXACT
    head = struct.pack("!cBBH", tag.encode(), bits, len(name), len(shape))
    return head + name + struct.pack(f"!{len(shape)}Q", *shape)


def load_spec(data: bytes, at: int) -> tuple[str, tuple[int, ...], bool, bool, int]:
    """Reads what `spec_bytes` wrote, behind the tag: dtype, shape, weak, exact, end.

    Raises:
        ProtocolError: when numpy can have no such array.
        struct.error, UnicodeDecodeError: when it is cut off, or is none.
    """
    bits, name_length, rank = struct.unpack_from("!BBH", data, at)
    at += 4
    name = data[at : at + name_length].decode("ascii")
    at += name_length
    shape = struct.unpack_from(f"!{rank}Q", data, at)
    if rank > _MAX_RANK or math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise ProtocolError("an array has a shape that cannot be.")
    if bits & ~(_WEAK | _EXACT):
        raise ProtocolError("an array is described by a peer with another protocol.")
    return name, shape, bool(bits & _WEAK), bool(bits & _EXACT), at + 8 * rank


def numpy_leaf(leaf: Leaf, place: LeafOffset, blob: bytes, buffers: Sequence[memoryview]) -> Any:
    """The array of an `A` or `K` leaf, as a view: read-only in the blob, writable in a buffer."""
    import numpy

    if place.buffer >= 0:
        return numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), buffers[place.buffer])
    return numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), blob, place.offset)


def no_derivative(shape: tuple[int, ...]) -> Any:
    """An array of jax's `float0`, as jax has it: numpy's, without any data."""
    import numpy

    return numpy.zeros(shape, numpy.dtype([("float0", numpy.void, 0)]))
