from __future__ import annotations

import pytest

from jaxd_server.runtime import limits
from jaxd_server.runtime.limits import RateLimiter, rate_limit_key
from tests.ids import row


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """One for an allowance."""
    return Clock()


def test_so_many_at_once_and_then_so_many_a_second(clock: Clock) -> None:
    """It says how long to wait, and counts what came meanwhile."""
    allowance = RateLimiter(3, 0.5, clock)
    assert [allowance.acquire("a") for _ in range(5)] == [0, 0, 0, None, None]
    assert allowance.wait_s("a") == 2.0
    clock.now += 1.5
    assert allowance.wait_s("a") == 0.5
    clock.now += 0.5
    assert allowance.acquire("a") == 2
    clock.now += 1000.0
    assert [allowance.acquire("a") for _ in range(4)] == [0, 0, 0, None]


def test_what_is_noted_counts_without_being_asked(clock: Clock) -> None:
    """A wrong token has been tried, whether it might or not."""
    allowance = RateLimiter(2, 1.0, clock)
    for expected in (0.0, 0.0, 1.0, 2.0):
        assert allowance.wait_s("a") == expected
        allowance.record("a")
    allowance = RateLimiter(1, 1.0, clock)
    assert [allowance.acquire(place) for place in "aabb"] == [0, None, 0, None]


def test_only_so_many_places_are_remembered(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand addresses take no more memory than that; the one longest unused is forgotten."""
    monkeypatch.setattr(limits, "_MAX_KEYS", 2)
    limiter = RateLimiter(1, 1.0, clock)
    assert [limiter.acquire(place) for place in "abac"] == [0, 0, None, 0]
    assert limiter.acquire("a") is None  # used after b, so it was kept
    assert limiter.acquire("b") == 0  # forgotten, so it begins anew


def test_a_place_is_what_one_peer_cannot_vary() -> None:
    """Neither its port, nor the part of an IPv6 address that it chooses itself."""
    rows: list[tuple[object, str]] = [
        (("127.0.0.1", 1), "127.0.0.1"),
        (("::ffff:10.0.0.7", 1, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 9, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", "unix"),
        ("/run/x.sock", "unix"),
        (b"\0abstract", "unix"),
    ]
    for peer, place in rows:
        with row((peer, place)):
            assert rate_limit_key(peer) == place
