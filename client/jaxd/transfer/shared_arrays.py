"""numpy arrays in shared memory: a server on the same machine reads them without a copy."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jaxd.interop.jax_runtime import leaves_of, loaded_jax, map_leaves
from jaxd.transfer.shared_memory import BlockOffset, BlockPool, SharedBlock

_MIN_SHARED_BYTES: Final = 1 << 16
"""Smaller arrays travel inside of the message anyway."""


class ReceiveBuffer(NamedTuple):
    """Shared memory into which the server writes arrays: their positions, views, and the block."""

    places: Sequence[int]
    data: Sequence[memoryview]
    block: SharedBlock

    def filled(self) -> None:
        """The reply has arrived. Until then the server may write, also if the caller gave up."""
        self.block.is_awaited = False


def empty(pool: BlockPool, shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
    """An array as of `numpy.empty`, in a block of its own.

    It is an ordinary one when it has less than 64 kB or holds objects, or when the pool has no
    block for it.
    """
    import numpy

    kind = numpy.dtype(dtype)
    dimensions = shape if isinstance(shape, tuple) else (shape,)
    nbytes = math.prod(dimensions) * kind.itemsize
    worth = nbytes >= _MIN_SHARED_BYTES and not kind.hasobject
    block = pool.lease(nbytes) if worth else None
    if block is None:
        return numpy.empty(dimensions, kind)
    return _array(block, block.view, 0, nbytes).view(kind).reshape(dimensions)


def shared_copy(pool: BlockPool, tree: Any) -> Any:
    """A tree with copies of the arrays in `tree`, all of them in one block.

    Arrays that `empty` would not put into a block are copied as numpy does. What is not an array
    stays as it is. Dicts, lists and tuples are taken apart; once jax is imported, whatever it
    takes apart.
    """
    import numpy

    leaves = leaves_of(tree)
    large = [n for n, leaf in enumerate(leaves) if _is_large(leaf)]
    flat = (numpy.ascontiguousarray(leaves[n]).reshape(-1) for n in large)
    places = pool.copy_in([each.view("u1").data for each in flat])
    placed = dict(zip(large, places or (), strict=False))
    copies = (_copy(leaf, placed.get(n)) for n, leaf in enumerate(leaves))
    return map_leaves(lambda _: next(copies), tree)


def block_view(block: SharedBlock, offset: int, nbytes: int) -> Any:
    """A read-only array of bytes in a block, which holds a share while it or a view of it exists.

    The caller keeps its own share.
    """
    block.retain()
    return _array(block, block.view.toreadonly(), offset, nbytes)


def _array(block: SharedBlock, memory: memoryview, offset: int, nbytes: int) -> Any:
    """Bytes of a block as an array that takes over one share of it."""
    numpy: Any = sys.modules["numpy"]
    # every view of a view refers to this very array: numpy looks through those in between
    owner = numpy.frombuffer(memory, "u1")
    weakref.finalize(owner, block.release).atexit = False
    return owner[offset : offset + nbytes]


def _copy(leaf: Any, place: BlockOffset | None) -> Any:
    """The copy in a block as an array, or one that numpy makes; what is no array stays as it is."""
    numpy: Any = sys.modules["numpy"]
    if place is not None:
        block, offset = place
        data = _array(block, block.view, offset, leaf.nbytes)
        return data.view(leaf.dtype).reshape(leaf.shape)
    return numpy.array(leaf) if _is_array(leaf) else leaf


def _is_large(leaf: Any) -> bool:
    return _is_array(leaf) and leaf.nbytes >= _MIN_SHARED_BYTES and not leaf.dtype.hasobject


def _is_array(leaf: Any) -> bool:
    numpy: Any = sys.modules["numpy"]
    jax = loaded_jax()
    if jax is not None and isinstance(leaf, jax.Array):
        return isinstance(leaf.dtype, numpy.dtype)  # else they are PRNG keys
    return isinstance(leaf, numpy.ndarray)
