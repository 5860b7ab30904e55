from __future__ import annotations

from typing import Any

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.health_monitor import reason_to_recycle


def reason(ready_s: float = 100.0, calls: int = 10, resident: int = 1000, **limits: Any) -> str:
    return reason_to_recycle(ServerOptions(**limits), {"calls": calls}, ready_s, resident)


def test_a_worker_lives_as_long_as_nobody_says_otherwise() -> None:
    """Whatever it has done."""
    assert reason(1e9, 10**9, 1 << 50) == ""


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"recycle_after_calls": 10}, "10 calls"),
        ({"recycle_after_s": 100.0}, "100 s old"),
        ({"recycle_above_bytes": 1000}, "MiB of memory"),
    ],
)
def test_each_limit_is_a_reason(limit: dict[str, Any], said: str) -> None:
    """When it is reached, and not one before."""
    assert said in reason(**limit)
    assert reason(99.0, 9, 999, **limit) == ""


def test_a_worker_that_is_large_at_once_is_not_replaced_at_once() -> None:
    """The next one would be as large."""
    assert reason(59.0, recycle_above_bytes=1000) == ""
