"""Limits: how often something may happen for each key, and how much each principal may use."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jaxd_protocol.base.bounded import BoundedDict

_MAX_KEYS: Final = 1024
"""Buckets that are kept, the most recently used ones; a dropped one begins empty."""

_NETWORK_BITS: Final = 64
"""The prefix of an IPv6 address that one customer has; it can choose the rest as it likes."""


@dataclass(slots=True)
class _Bucket:
    height: float = 0.0
    at: float = 0.0
    rejected: int = 0


class RateLimiter:
    """A leaking bucket for each key. Thread-safe and bounded.

    Args:
        burst: events, or units of something, that are allowed at once.
        per_s: how many are allowed again each second after that.
        clock: seconds that only grow.
    """

    def __init__(
        self, burst: float, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._buckets = BoundedDict[str, _Bucket](_MAX_KEYS)
        self._lock = threading.Lock()  # guards _buckets and all levels

    def record(self, key: str, amount: float = 1.0) -> None:
        """Counts an event that was not limited."""
        with self._lock:
            self._bucket(key).height += amount

    def wait_s(self, key: str, amount: float = 1.0) -> float:
        """Seconds until so much more of a key is allowed; 0: it is now."""
        with self._lock:
            over = self._bucket(key).height + amount - self._burst
        return max(0.0, over / self._per_s)

    def acquire(self, key: str) -> int | None:
        """Counts an event if it is allowed.

        Returns:
            the number of rejected events since the last allowed one; None when it is not allowed.
        """
        with self._lock:
            bucket = self._bucket(key)
            if bucket.height + 1.0 > self._burst:
                bucket.rejected += 1
                return None
            bucket.height += 1.0
            rejected, bucket.rejected = bucket.rejected, 0
            return rejected

    def _bucket(self, key: str) -> _Bucket:
        """The bucket of a key, less what has leaked since its last use. The lock is held."""
        now = self._clock()
        bucket = self._buckets[key] = self._buckets.get(key) or _Bucket(at=now)
        bucket.height = max(0.0, bucket.height - (now - bucket.at) * self._per_s)
        bucket.at = now
        return bucket


def rate_limit_key(peer: object) -> str:
    """The key of a peer: the same for all addresses that it could choose.

    Args:
        peer: as `socket.getpeername` returns it.
    """
    if not isinstance(peer, tuple):
        return "unix"
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


class Quota:
    """Accounts for bytes, or calls, of which there is a limited number. Not thread-safe.

    Args:
        limit: how many there are.
        share: of these, what one principal may use; at least one.

    Attributes:
        limit: the same.
        max_per_principal: the number that `share` comes to.
        used: how many are in use.
        used_by: the same by principal, of those that use any.
    """

    def __init__(self, limit: int, share: float = 1.0) -> None:
        self.limit = limit
        self.max_per_principal = max(1, int(limit * share))
        self.used = 0
        self.used_by: Counter[str] = Counter()

    def add(self, principal: str, amount: int) -> None:
        """A principal uses so many more; fewer, when that is negative."""
        self.used += amount
        self.used_by[principal] += amount
        if not self.used_by[principal]:
            del self.used_by[principal]

    def left(self, principal: str) -> int:
        """How many more a principal may use."""
        return min(self.limit - self.used, self.max_per_principal - self.used_by[principal])
