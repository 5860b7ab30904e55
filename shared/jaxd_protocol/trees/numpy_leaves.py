"""Leaves as numpy arrays over the bytes that arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxd_protocol.trees.leaves import Leaf, Place, dtype_of

__all__ = ["no_derivative", "numpy_leaf"]


def numpy_leaf(leaf: Leaf, place: Place, blob: bytes, buffers: Sequence[memoryview]) -> Any:
    """The array of an `A` or `K` leaf, as a view: read-only in the blob, writable in a buffer."""
    import numpy

    if place.buffer >= 0:
        return numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), buffers[place.buffer])
    return numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), blob, place.offset)


def no_derivative(shape: tuple[int, ...]) -> Any:
    """An array of jax's `float0`, as jax has it: numpy's, without any data."""
    import numpy

    return numpy.zeros(shape, numpy.dtype([("float0", numpy.void, 0)]))
