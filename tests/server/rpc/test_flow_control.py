from __future__ import annotations

import pytest

from jaxd_protocol.errors import Busy
from jaxd_server.rpc.flow_control import Backlog


def test_only_so_many_calls_are_held() -> None:
    """One that is over makes room for the next."""
    backlog = Backlog(2, share=1.0)
    backlog.acquire("a")
    backlog.acquire("a")
    with pytest.raises(Busy, match="--max-calls") as raised:
        backlog.acquire("b")
    assert "2 calls of this user" not in str(raised.value)
    backlog.release("a")
    backlog.acquire("b")
    assert len(backlog) == 2


def test_one_principal_does_not_fill_the_place() -> None:
    """Others find room beside it."""
    backlog = Backlog(4, share=0.5)
    backlog.acquire("a")
    backlog.acquire("a")
    with pytest.raises(Busy, match="2 calls of this user and 0 of others"):
        backlog.acquire("a")
    backlog.acquire("b")
    backlog.release("a")
    backlog.acquire("a")


def test_when_to_come_again_follows_the_pace() -> None:
    """Half of what is ahead is over by then; neither at once nor much later."""
    now = [0.0]
    backlog = Backlog(40, share=1.0, clock=lambda: now[0])

    def told() -> float:
        with pytest.raises(Busy) as raised:
            backlog.acquire("a")
        return raised.value.retry_after_s

    for _ in range(40):
        backlog.acquire("a")
    assert told() == 0.05
    for _ in range(200):
        now[0] += 0.02
        backlog.release("a")
        backlog.acquire("a")
    assert told() == pytest.approx(0.4, rel=0.1)
    for _ in range(200):
        now[0] += 60.0
        backlog.release("a")
        backlog.acquire("a")
    assert told() == 10.0
