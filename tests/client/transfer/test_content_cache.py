"""Whether data is worth compressing or looking for, by the speed of a link."""

from __future__ import annotations

import os

import pytest

from jaxd.transfer.content_cache import (
    FAST_LINK,
    MIN_COMPRESSED_BYTES,
    PROBE_COUNT,
    SKIP_COUNT,
    DedupPolicy,
    compressed,
)
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


MIB = 1 << 20


def test_a_link_of_which_nothing_is_known_is_taken_for_a_slow_one() -> None:
    """Unless the server is said to be near."""
    assert DedupPolicy().should_probe(1)
    assert not DedupPolicy(is_near=True).should_probe(1)


def test_nothing_is_hashed_over_a_fast_link() -> None:
    """Until it has been slow several times: one call may have taken long for other reasons."""
    policy = DedupPolicy()
    policy.record_transfer(100 * MIB, 100 * MIB / FAST_LINK / 2)
    for _ in range(3):
        assert not policy.should_probe(1)
        policy.record_transfer(100 * MIB, 10)
    policy.record_transfer(100 * MIB, 10)
    assert policy.should_probe(1)


def test_small_calls_say_nothing_of_the_link() -> None:
    """They wait for the server, not for their data."""
    policy = DedupPolicy()
    for _ in range(9):
        policy.record_transfer(MIB - 1, 1e-9)
    assert policy.should_probe(1)


def test_a_near_link_that_turns_out_slow_is_a_slow_one() -> None:
    """As when a tunnel ends on this machine."""
    policy = DedupPolicy(is_near=True)
    for _ in range(4):
        assert not policy.should_probe(1)
        policy.record_transfer(MIB, 1)
    assert policy.should_probe(1)


@pytest.mark.parametrize(("hits", "goes_on"), [(1, False), (2, True), (8, True)])
def test_after_eight_arrays_one_in_five_has_to_be_a_hit(hits: int, goes_on: bool) -> None:
    """Else some hundreds are left alone, and then it is tried again."""
    policy = DedupPolicy()
    for number in range(PROBE_COUNT):
        assert policy.should_probe(1)
        policy.record_probe(number < hits, 1)
    assert policy.should_probe(1) is goes_on
    if not goes_on:
        assert not any(policy.should_probe(1) for _ in range(SKIP_COUNT - 1))
        assert policy.should_probe(1)


def test_hits_of_long_ago_do_not_count_for_ever() -> None:
    """A program that begins to send other arrays is noticed."""
    policy = DedupPolicy()
    policy.record_probe(1000, 1000)
    tries = 0
    while policy.should_probe(1):
        policy.record_probe(0, 1)
        tries += 1
    assert tries < 5000
