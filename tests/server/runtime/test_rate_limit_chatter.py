from __future__ import annotations

from jaxd_server.runtime.rate_limit import MessageRateLimiter


def test_a_flood_is_too_much() -> None:
    """However it begins: only so much may be said at once."""
    message_rate_limiter = MessageRateLimiter(lambda: 0.0)
    assert [message_rate_limiter.is_exceeded() for _ in range(201)] == [False] * 200 + [True]


def test_what_is_said_from_time_to_time_is_never_too_much() -> None:
    """And a long silence allows no more at once than there was at first."""
    now = [0.0]
    message_rate_limiter = MessageRateLimiter(lambda: now[0])
    for _ in range(1000):
        now[0] += 0.0625
        assert not message_rate_limiter.is_exceeded()
    now[0] += 1e6
    assert [message_rate_limiter.is_exceeded() for _ in range(201)] == [False] * 200 + [True]
