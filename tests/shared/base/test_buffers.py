from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from jaxd_protocol.base.buffers import ALIGNMENT, allocate

SIZES = [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("numpy", ["loaded", "not loaded", "being loaded"])
def test_a_buffer_is_writable_bytes_of_its_own(
    monkeypatch: pytest.MonkeyPatch, size: int, numpy: str
) -> None:
    """With numpy, without it, and while another thread imports it."""
    if numpy != "loaded":
        half = None if numpy == "not loaded" else types.ModuleType("numpy")
        monkeypatch.setitem(sys.modules, "numpy", half)
    buffer = allocate(size)
    assert (len(buffer), buffer.nbytes, buffer.format, buffer.ndim) == (size, size, "B", 1)
    assert not buffer.readonly
    assert buffer.contiguous
    buffer[:] = b"\7" * size
    assert bytes(allocate(size)[:0]) == b""


@pytest.mark.parametrize("size", [4096, 4097, 100_000])
def test_a_large_buffer_is_aligned_so_that_jax_takes_it_as_it_is(size: int) -> None:
    """Each of them."""
    for buffer in [allocate(size) for _ in range(20)]:
        assert np.frombuffer(buffer, "u1").ctypes.data % ALIGNMENT == 0
