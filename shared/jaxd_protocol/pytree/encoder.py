"""Trees to skeleton, blob and buffers, in one walk.

The skeleton is everything about a tree but its data. Two trees have equal skeletons exactly when
they have the same structure, keys, static values, shapes, dtypes and weak types, so a server can
use the bytes themselves as the first name of a call's signature.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.pytree.leaves import (
    ALIGNMENT,
    INLINE_BYTES,
    SCALAR_FORMATS,
    Leaf,
    array_spec,
    spec_bytes,
)
from jaxd_protocol.pytree.literals import dump_literal, is_literal

_INT64: Final = 1 << 63
_FLOAT: Final = SCALAR_FORMATS["F"].pack
_INT: Final = SCALAR_FORMATS["I"].pack
_BOOL: Final = SCALAR_FORMATS["B"].pack
_COMPLEX: Final = SCALAR_FORMATS["C"].pack
_PAD: Final = [bytes(-n % ALIGNMENT) for n in range(ALIGNMENT)]
"""What follows an item of so many bytes, but for whole rows, so that the next one is aligned."""
_dump_text: Final = lru_cache(maxsize=1 << 12)(dump_literal)
"""For the keys of dicts that are text, and only for text: 1 and True are one key of a cache."""


class TreeEncoder:
    """Collects one tree, or several that share their data, one `node` call each.

    Subclasses encode values that are not plain (`other`).

    Attributes:
        buffers: the arrays above `INLINE_BYTES`, as flat byte views, in order.
        buffer_leaves: for each of them the number of its leaf; -1 when that is no plain array.
        count: number of leaves so far.
        types: how values of exactly these types are appended; others are `other`.
    """

    types: ClassVar[dict[type, Callable[[Any, Any], None]]]

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self.buffer_leaves: list[int] = []
        self._skeleton: list[bytes] = []
        self._blob: list[bytes] = []
        self.count = 0

    @property
    def skeleton(self) -> bytes:
        """The structure of all nodes so far."""
        return b"".join(self._skeleton)

    @property
    def blob(self) -> bytes:
        """The numbers and small arrays of all nodes so far."""
        pieces = [piece for data in self._blob for piece in (data, _PAD[len(data) % ALIGNMENT])]
        return b"".join(pieces[:-1])  # the last one ends with its data

    def node(self, value: Any) -> None:
        """Appends one tree."""
        encode = self.types.get(type(value))
        if encode is None:
            self.other(value)
        else:
            encode(self, value)

    def other(self, value: Any) -> None:
        """Appends a value of a type that is not plain; the base class knows named tuples only."""
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self._named_tuple(value)
        else:
            raise TypeError(f"{type(value).__name__} has no place in a tree")

    def static(self, value: Any) -> None:
        """Appends a literal as part of the structure."""
        self._skeleton += (b"S", dump_literal(value))

    def small(self, data: bytes) -> None:
        """Puts bytes into the blob, at the next aligned offset."""
        self.count += 1
        self._blob.append(data)

    def large(self, data: memoryview) -> None:
        """Puts the bytes of an array beside the message."""
        self.buffer_leaves.append(self.count)
        self.count += 1
        self.buffers.append(data)

    def beside(self, *data: memoryview) -> None:
        """Puts a leaf beside the message that is no array."""
        self.count += 1
        self.buffers += data
        self.buffer_leaves += [-1] * len(data)

    def ndarray(self, array: Any, weak: bool = False, is_jax: bool = False) -> None:
        """Appends a numpy array, of whatever order; it may be the data of an array of jax."""
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not array.flags.c_contiguous:
            import numpy

            array = numpy.ascontiguousarray(array)
        self.array(array, weak, is_jax)

    def array(self, array: Any, weak: bool = False, is_jax: bool = False) -> None:
        """Appends a numpy array; it must be C-contiguous and in native byte order."""
        spec, size = array_spec(array.dtype, array.shape, weak, is_jax)
        self._skeleton.append(spec)
        if size > INLINE_BYTES:
            self.large(array.reshape(-1).view("u1").data)
            return
        self.count += 1
        self._blob.append(array.tobytes())

    def raw_array(self, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Appends an array that is only bytes, in C order: numpy is not needed."""
        self._skeleton.append(spec_bytes("A", dtype, shape))
        if len(data) <= INLINE_BYTES:
            self.small(bytes(data))
        else:
            self.large(data)

    def key(self, impl: str, data: Any) -> None:
        """Appends an array of PRNG keys: the implementation's name and the keys' numbers."""
        spec, size = array_spec(data.dtype, data.shape)
        self._skeleton += (b"K", dump_literal(impl), spec[1:])
        if size <= INLINE_BYTES:
            self.small(data.tobytes())
        else:
            self.beside(data.reshape(-1).view("u1").data)

    def spec(self, leaf: Leaf) -> None:
        """Appends an array, or PRNG keys, whose data is not in the message."""
        self.count += 1
        self._skeleton.append(_spec_of(leaf))

    def specs_of(self, leaves: Sequence[Leaf], first: int, stop: int) -> None:
        """Appends some of the leaves of a layout, which must not change, in the same way."""
        self.count += stop - first
        self._skeleton.append(_specs_of(leaves, first, stop))

    def specs(self, leaves: Iterable[Leaf]) -> None:
        """Appends a tuple of arrays whose data is not in the message."""
        found = list(leaves)
        self._skeleton += (b"T", COUNT.pack(len(found)))
        for leaf in found:
            self.spec(leaf)

    def _float(self, value: float) -> None:
        self._skeleton.append(b"F")
        self.small(_FLOAT(value))

    def _int(self, value: int) -> None:
        if -_INT64 <= value < _INT64:
            self._skeleton.append(b"I")
            self.small(_INT(value))
        else:
            self.static(value)  # jax will report the overflow

    def _bool(self, value: bool) -> None:
        self._skeleton.append(b"B")
        self.small(_BOOL(value))

    def _complex(self, value: complex) -> None:
        self._skeleton.append(b"C")
        self.small(_COMPLEX(value.real, value.imag))

    def _sequence(self, value: tuple[Any, ...] | list[Any]) -> None:
        self._skeleton += (b"L" if type(value) is list else b"T", COUNT.pack(len(value)))
        for child in value:
            self.node(child)

    def _mapping(self, value: dict[Any, Any]) -> None:
        dump = _dump_text if {str}.issuperset(map(type, value)) else dump_literal
        if dump is dump_literal and not all(map(is_literal, value)):
            return self.non_literal_keys(value)
        self._skeleton += (b"D" if type(value) is dict else b"M", COUNT.pack(len(value)))
        for key, child in value.items():
            self._skeleton.append(dump(key))
            self.node(child)
        return None

    def non_literal_keys(self, value: dict[Any, Any]) -> None:
        """Appends a mapping whose keys are not all literals."""
        raise TypeError("a mapping's keys must be plain values such as strings or integers")

    def class_name(self, cls: type) -> bytes:
        """The bytes for a class in the skeleton."""
        return dump_literal((cls.__module__, cls.__qualname__))

    def _named_tuple(self, value: Any) -> None:
        cls = type(value)
        self._skeleton += (b"U", self.class_name(cls), dump_literal(tuple(cls._fields)))
        for child in value:
            self.node(child)


@lru_cache(maxsize=1 << 14)
def _spec_of(leaf: Leaf) -> bytes:
    """The bytes of a leaf."""
    spec = spec_bytes(leaf.tag, leaf.dtype, leaf.shape, leaf.weak, leaf.exact)
    return b"K" + dump_literal(leaf.impl) + spec[1:] if leaf.tag == "K" else spec


def _specs_of(leaves: Sequence[Leaf], first: int, stop: int) -> bytes:
    """The bytes of several leaves, cached by identity: those of a layout do not change."""
    key = id(leaves), first, stop
    found = _runs.get(key)
    if found is not None and found[0] is leaves:
        return found[1]
    specs = b"".join(map(_spec_of, leaves[first:stop]))
    _runs[key] = leaves, specs
    return specs


_MAX_RUNS: Final = 1 << 8
_runs: Final = BoundedDict[tuple[int, int, int], tuple[Sequence[Leaf], bytes]](_MAX_RUNS)

TreeEncoder.types = {
    type(None): lambda encoder, _: encoder._skeleton.append(b"N"),
    float: TreeEncoder._float,
    int: TreeEncoder._int,
    bool: TreeEncoder._bool,
    complex: TreeEncoder._complex,
    str: TreeEncoder.static,
    bytes: TreeEncoder.static,
    tuple: TreeEncoder._sequence,
    list: TreeEncoder._sequence,
    dict: TreeEncoder._mapping,
    OrderedDict: TreeEncoder._mapping,
}
