"""What pays over a link of a measured speed: hashing data before it is sent, or compressing it."""

from __future__ import annotations

import time
import zlib
from collections import deque
from typing import Final

from jaxd_protocol.base.buffers import deflate

FAST_LINK: Final = 4e8
"""Bytes a second: over a faster link, hashing takes as long as sending."""

PROBE_COUNT: Final = 8
"""Arrays that are looked up before the hit rate is judged."""

SKIP_COUNT: Final = 256
"""Arrays that are sent without a lookup after a low hit rate."""

_MIN_HIT_SHARE: Final = 0.2
_KEPT_SPEEDS: Final = 4
_MAX_COUNTED: Final = 64
_MIN_MEASURED_BYTES: Final = 1 << 20


class DedupPolicy:
    """Measures throughput and hits. Races between threads only cost a little accuracy.

    Args:
        is_near: whether the link is assumed to be fast until a few calls have been measured.
    """

    def __init__(self, is_near: bool = False) -> None:
        self._speeds = deque([FAST_LINK if is_near else 0.0], maxlen=_KEPT_SPEEDS)
        self._probed = 0
        self._hits = 0
        self._to_skip = 0

    @property
    def speed(self) -> float:
        """Bytes a second that the link is known to take."""
        return max(self._speeds)

    def should_probe(self, count: int) -> bool:
        """Whether to look whether the server has these arrays already."""
        if self.speed >= FAST_LINK:
            return False
        if self._to_skip > 0:
            self._to_skip -= count
            return False
        return True

    def record_probe(self, hits: int, asked: int) -> None:
        """Records a lookup: the number of arrays that were found, and that were asked for."""
        self._hits += hits
        self._probed += asked
        if self._probed < PROBE_COUNT:
            return
        if self._hits < self._probed * _MIN_HIT_SHARE:
            self._to_skip = SKIP_COUNT
            self._probed = self._hits = 0
        elif self._probed >= _MAX_COUNTED:
            self._probed //= 2
            self._hits //= 2

    def record_transfer(self, nbytes: int, seconds: float) -> None:
        """Records how long a call took that sent so many bytes: a lower bound of the speed.

        The link may be faster where the call ran long; then hashing costs little in comparison.
        """
        if nbytes >= _MIN_MEASURED_BYTES:
            self._speeds.append(nbytes / max(seconds, 1e-9))


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
