from __future__ import annotations

import os

import pytest

from jaxd.transfer.link_speed import MIN_COMPRESSED_BYTES, compressed
from jaxd_protocol.base.buffers import inflate

ZEROS = memoryview(bytes(1 << 20))
NOISE = memoryview(os.urandom(1 << 20))


def test_what_can_be_made_smaller_is() -> None:
    """And can be inflated."""
    packed = compressed(ZEROS, 0.0)
    assert packed is not None
    assert len(packed) < len(ZEROS) // 100
    assert inflate(packed, len(ZEROS)) == ZEROS


@pytest.mark.parametrize("data", [NOISE, ZEROS[: MIN_COMPRESSED_BYTES - 1]])
def test_what_cannot_be_made_smaller_is_sent_as_it_is(data: memoryview) -> None:
    """And so is what is small."""
    assert compressed(data, 0.0) is None


def test_the_sample_is_taken_all_over_the_data() -> None:
    """A quiet beginning does not make an array quiet."""
    data = memoryview(bytes(200_000) + os.urandom(800_000))
    assert compressed(data, 0.0) is None


def test_the_smallest_arrays_can_be_sampled() -> None:
    """Their samples lie close together."""
    assert compressed(ZEROS[:MIN_COMPRESSED_BYTES], 0.0) is not None


def test_a_sample_can_be_wrong() -> None:
    """What was not made smaller is sent as it is all the same."""
    data = bytearray(os.urandom(1 << 20))
    step = (len(data) - 10_000) // 4
    for at in range(0, step * 5, step):
        data[at : at + 10_000] = bytes(10_000)
    assert compressed(memoryview(data), 0.0) is None


def test_over_a_fast_link_nothing_is_compressed() -> None:
    """It is sent before it would be packed."""
    assert compressed(ZEROS, 1e11) is None
