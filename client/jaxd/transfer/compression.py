"""Compresses arrays before they are sent, where the user allows it and it saves time."""

from __future__ import annotations

import time
import zlib
from typing import Final

from jaxd_protocol.base.buffers import deflate

MIN_COMPRESSED_BYTES: Final = 1 << 16

_SAMPLES: Final = 5
_SAMPLE_BYTES: Final = 10_000
_MAX_RATIO: Final = 0.7
"""Data that does not become smaller than this share is sent as it is."""


def compressed(data: memoryview, link_speed: float) -> memoryview | None:
    """The compressed data; None when a sample shows that compressing it saves no time.

    Args:
        data: of an array.
        link_speed: bytes a second that the link can take.
    """
    if len(data) < MIN_COMPRESSED_BYTES:
        return None
    ratio, speed = _measure_sample(data)
    if ratio >= _MAX_RATIO or link_speed >= speed:
        return None
    found = deflate(data)
    return memoryview(found) if len(found) < len(data) * _MAX_RATIO else None


def _measure_sample(data: memoryview) -> tuple[float, float]:
    """The compression ratio of a sample, and how many bytes a second are compressed."""
    step = (len(data) - _SAMPLE_BYTES) // (_SAMPLES - 1)
    started = time.perf_counter()
    sizes = [
        len(zlib.compress(data[at : at + _SAMPLE_BYTES], 1))
        for at in range(0, step * _SAMPLES, step)
    ]
    seconds = max(time.perf_counter() - started, 1e-9)
    total = _SAMPLES * _SAMPLE_BYTES
    return sum(sizes) / total, total / seconds
