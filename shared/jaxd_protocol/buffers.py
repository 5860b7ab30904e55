"""Memory for what arrives: aligned so that jax takes it without a copy, and never zeroed first."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["ALIGNMENT", "allocate"]

ALIGNMENT = 64
"""XLA's CPU client aliases a numpy buffer only when its address is a multiple of 64 bytes;
otherwise it copies (25 ms for 64 MB where the alias costs 4 µs)."""

_SMALL = 4096


def allocate(nbytes: int) -> memoryview:
    """A fresh, writable buffer of `nbytes` bytes, 64-byte aligned when numpy is loaded.

    numpy's allocator does not touch the pages (2.2 to 2.5 times faster than `bytearray` for
    64 MB). A process that has not imported numpy has no arrays to align: it gets a `bytearray`.
    """
    numpy: Any = sys.modules.get("numpy")
    empty = getattr(numpy, "empty", None)  # None also while another thread imports numpy
    if nbytes < _SMALL or empty is None:
        return memoryview(bytearray(nbytes))
    block = empty(nbytes + ALIGNMENT, "u1")
    offset = -block.ctypes.data % ALIGNMENT
    return memoryview(block[offset : offset + nbytes])
