"""Compresses arrays before they are sent, where the user allows it and it saves time."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Final

from jaxd_protocol.base.buffers import deflate

if TYPE_CHECKING:
    from jaxd.transfer.dedup_policy import DedupPolicy


MIN_COMPRESSED_BYTES: Final = 1 << 16

_SAMPLES: Final = 5
_SAMPLE_BYTES: Final = 10_000
_MAX_RATIO: Final = 0.7
"""What is not made smaller than this is sent as it is."""


class Compression:
    """Compresses what can be compressed faster than it can be sent. Thread-safe.

    Args:
        worth: knows the link.
    """

    def __init__(self, policy: DedupPolicy) -> None:
        self._policy = policy

    def packed(self, data: memoryview) -> memoryview | None:
        """The data made smaller; None when that does not pay, as far as a sample shows."""
        if len(data) < MIN_COMPRESSED_BYTES:
            return None
        ratio, speed = _measure_sample(data)
        if ratio >= _MAX_RATIO or self._policy.speed >= speed:
            return None
        found = deflate(data)
        return memoryview(found) if len(found) < len(data) * _MAX_RATIO else None


def _measure_sample(data: memoryview) -> tuple[float, float]:
    """How small a sample becomes, and how many bytes a second are compressed."""
    step = (len(data) - _SAMPLE_BYTES) // (_SAMPLES - 1)
    started = time.perf_counter()
    sizes = [
        len(zlib.compress(data[at : at + _SAMPLE_BYTES], 1))
        for at in range(0, step * _SAMPLES, step)
    ]
    seconds = max(time.perf_counter() - started, 1e-9)
    total = _SAMPLES * _SAMPLE_BYTES
    return sum(sizes) / total, total / seconds
