"""Data that need not travel over a slow link: what the server has already, and compression.

numpy arrays are mutable, so over networks they are hashed on each call. The server keeps data under
its hash, also for later processes of the same user; it is asked once for each hash.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.buffers import deflate
from jaxd_protocol.messages.data_locations import (
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
    content_id,
    pack_ids,
)

if TYPE_CHECKING:
    from jaxd.transfer.server_copies import ServerCopies, ServerCopy


MIN_HASHED_BYTES: Final = 1 << 20
"""Below this, hashing and asking take as long as sending."""

_MAX_KNOWN: Final = 4096

ContentId = tuple[int, int]
AdoptRequest = Callable[[bytes, bytes], bytes]
"""Asks the server: content ids, and the ids of values that these are to become; see `calls`."""


class ContentCache:
    """The contents that the server is known to hold, for one session. Thread-safe.

    Args:
        copies: of the session.
        policy: decides whether data is hashed.
    """

    def __init__(self, copies: ServerCopies, policy: DedupPolicy) -> None:
        self._copies = copies
        self._policy = policy
        self._known: BoundedDict[ContentId, ServerCopy] = BoundedDict(_MAX_KNOWN)

    def locate(
        self, data: Mapping[int, memoryview], leaf_headers: Mapping[int, bytes], ask: AdoptRequest
    ) -> list[tuple[DataLocation, ServerCopy | None]]:
        """Locations for arrays that the server has, or keeps from now on.

        The copies must be completed with the call.

        Args:
            data: of the arrays of a call, by leaf.
            leaf_headers: their bytes in the skeleton, by leaf.
            ask: asks the server.

        Raises:
            ConnectionLost: when the server cannot be asked.
        """
        large = {leaf: one for leaf, one in data.items() if len(one) >= MIN_HASHED_BYTES}
        if not large or not self._policy.should_probe(len(large)):
            return []
        contents = {leaf: content_id(leaf_headers[leaf], one) for leaf, one in large.items()}
        found = {leaf: self._find(content) for leaf, content in contents.items()}
        unknown = [leaf for leaf, copy in found.items() if copy is None]
        if unknown:
            sizes = {contents[leaf]: len(large[leaf]) for leaf in unknown}
            self._adopt(sizes, ask)
            found.update({leaf: self._find(contents[leaf]) for leaf in unknown})
        self._policy.record_probe(sum(copy is not None for copy in found.values()), len(found))
        return [
            (DataLocation(leaf, CACHED_BY_CONTENT, *contents[leaf]), None)
            if copy is None
            else (DataLocation(leaf, VALUE, copy.id), copy)
            for leaf, copy in found.items()
        ]

    def _find(self, content: ContentId) -> ServerCopy | None:
        """The copy with that content, acquired for a call."""
        copy = self._known.use(content)
        return copy if copy is not None and self._copies.acquire(copy) else None

    def _adopt(self, sizes: Mapping[ContentId, int], ask: AdoptRequest) -> None:
        """Asks the server to make values of the contents that it has."""
        begun = {content: self._copies.reserve(nbytes) for content, nbytes in sizes.items()}
        copies = {content: copy for content, copy in begun.items() if copy is not None}
        if not copies:
            return
        refused: Sequence[Any] = list(copies.values())
        ready = False
        try:
            found = ask(
                pack_ids(number for content in copies for number in content),
                pack_ids(copy.id for copy in copies.values()),
            )
            refused = [copy for copy, is_there in zip(refused, found, strict=True) if not is_there]
            ready = True
            for copy in copies.values():
                copy.is_shared = True
        finally:
            ids = [copy.id for copy in refused]
            self._copies.complete(copies.values(), ready=ready, refused=ids)
        self._known.update((key, copy) for key, copy in copies.items() if copy.is_on_server)


# what pays over a link of a measured speed -------------------------------------------------------

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
