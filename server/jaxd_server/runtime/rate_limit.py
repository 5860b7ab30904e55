"""Rate limiters: leaking buckets for peer addresses, and one for the messages of a worker."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jaxd_protocol.base.bounded import BoundedDict

_MAX_KEYS: Final = 1024
"""How many addresses are remembered, the latest ones; a forgotten one begins anew."""

_NETWORK_BITS: Final = 64
"""Of an IPv6 address: what one customer of a provider has, and can vary the rest of as it likes."""


@dataclass(slots=True)
class _Bucket:
    height: float = 0.0
    at: float = 0.0
    passed_over: int = 0


class RateLimiter:
    """A leaking bucket for each key. Thread-safe and bounded.

    Args:
        at_once: what may happen in one go.
        per_s: what may happen again each second after that.
        clock: seconds that only grow.
    """

    def __init__(
        self, at_once: int, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._clock = clock
        self._buckets = BoundedDict[str, _Bucket](_MAX_KEYS)
        self._lock = threading.Lock()  # guards the levels

    def record(self, place: str) -> None:
        """It has happened once more."""
        with self._lock:
            self._bucket(place).height += 1.0

    def wait_s(self, place: str) -> float:
        """Seconds until it may happen there again; 0: it may now."""
        with self._lock:
            over = self._bucket(place).height + 1.0 - self._at_once
        return max(0.0, over / self._per_s)

    def acquire(self, place: str) -> int | None:
        """Notes it if it may happen; how often it was to happen since, and might not.

        Returns:
            None when it may not.
        """
        with self._lock:
            level = self._bucket(place)
            if level.height + 1.0 > self._at_once:
                level.passed_over += 1
                return None
            level.height += 1.0
            passed_over, level.passed_over = level.passed_over, 0
            return passed_over

    def _bucket(self, place: str) -> _Bucket:
        """What has not leaked away by now."""
        now = self._clock()
        level = self._buckets[place] = self._buckets.get(place) or _Bucket(at=now)
        level.height = max(0.0, level.height - (now - level.at) * self._per_s)
        level.at = now
        return level


def rate_limit_key(peer: object) -> str:
    """What stands for all that one peer could call itself.

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


_BURST: Final = 200
_RATE_PER_S: Final = 20.0
"""A worker sends some ten unsolicited messages in its lifetime."""


class MessageRateLimiter:
    """Counts unsolicited messages against a rate.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = float(_BURST)
        self._at = clock()

    def is_exceeded(self) -> bool:
        """Counts one message; returns whether there are more than a correct worker sends."""
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._at) * _RATE_PER_S) - 1
        self._at = now
        return self._tokens < 0
