from __future__ import annotations

import sys
import types
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.base import buffers
from jaxd_protocol.base.buffers import ALIGNMENT, allocate, deflate, inflate
from jaxd_protocol.errors import ProtocolError

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


@given(st.binary(max_size=300), st.integers(1, 9))
def test_what_was_deflated_comes_back(data: bytes, pieces: int) -> None:
    """Whatever it is, and in however many pieces it goes in and out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_CHUNK_BYTES", pieces)
        packed = deflate(memoryview(data))
        assert bytes(inflate(memoryview(packed), len(data))) == data


def test_large_arrays_come_back_aligned() -> None:
    """A device can use their memory as it is."""
    data = np.arange(1 << 19, dtype=np.uint32) % 1000
    packed = deflate(data.view("u1").data)
    assert len(packed) < data.nbytes // 2
    found = np.frombuffer(inflate(memoryview(packed), data.nbytes), np.uint32)
    np.testing.assert_array_equal(found, data)
    assert found.ctypes.data % 64 == 0


@pytest.mark.parametrize("size", [0, 1, 99, 101, 5000])
def test_another_size_than_was_announced_is_refused(size: int) -> None:
    """One that is larger is not even inflated."""
    with pytest.raises(ProtocolError, match="compressed array"):
        inflate(memoryview(deflate(memoryview(bytes(100)))), size)


@pytest.mark.parametrize("data", [b"", b"none", zlib.compress(bytes(9))[:-1]])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    """Also one without its end, and what stands behind an end."""
    with pytest.raises(ProtocolError):
        inflate(memoryview(data), 9)
    with pytest.raises(ProtocolError):
        inflate(memoryview(zlib.compress(bytes(9)) + b"more"), 9)
