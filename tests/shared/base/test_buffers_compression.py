from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.base import buffers
from jaxd_protocol.base.buffers import deflate, inflate
from jaxd_protocol.errors import ProtocolError


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


@pytest.mark.slow
def test_a_bomb_does_not_go_off() -> None:
    """A stream of gigabytes takes no more memory than the array that it was announced to be."""
    packer = zlib.compressobj(9)
    bomb = b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)] + [packer.flush()])
    assert len(bomb) < 1 << 20
    with pytest.raises(ProtocolError, match="compressed array"):
        inflate(memoryview(bomb), 1000)


@pytest.mark.parametrize("data", [b"", b"none", zlib.compress(bytes(9))[:-1]])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    """Also one without its end, and what stands behind an end."""
    with pytest.raises(ProtocolError):
        inflate(memoryview(data), 9)
    with pytest.raises(ProtocolError):
        inflate(memoryview(zlib.compress(bytes(9)) + b"more"), 9)
