from __future__ import annotations

import threading

import pytest

from jaxd_server.runtime.threads.executors import FairThreadPool
from tests.server.staging import PATIENCE_S, until


def test_jobs_are_done_in_turn_for_each_owner() -> None:
    """One job of another client's does not wait for a hundred."""
    threads, order, go = FairThreadPool(1, "test-fair"), [], threading.Event()
    threads.submit("many", lambda: _ignore(go.wait(PATIENCE_S)))
    until(lambda: len(threads) == 0)
    for number in range(100):
        threads.submit("many", lambda number=number: order.append(number))  # type: ignore[misc]
    threads.submit("one", lambda: order.append(-1))
    go.set()
    until(lambda: len(order) == 101)
    assert order.index(-1) == 1
    assert [number for number in order if number >= 0] == list(range(100))
    threads.shutdown()


def test_as_many_threads_as_are_needed_and_no_more() -> None:
    """They stay, and are used again."""
    threads, meeting = FairThreadPool(3, "test-fair"), threading.Barrier(4)
    for _ in range(3):
        threads.submit(None, lambda: _ignore(meeting.wait(PATIENCE_S)))
    meeting.wait(PATIENCE_S)
    until(lambda: threads._idle == 3)
    for _ in range(50):
        done = threading.Event()
        threads.submit(None, done.set)
        assert done.wait(PATIENCE_S)
    assert threads._threads == 3
    threads.shutdown()
    until(lambda: not [t for t in threading.enumerate() if t.name == "test-fair"])


def test_a_job_that_waits_can_be_withdrawn() -> None:
    """One that is begun cannot."""
    threads, go, done = FairThreadPool(1, "test-fair"), threading.Event(), []

    def first() -> None:
        go.wait(PATIENCE_S)

    def second() -> None:
        done.append(2)

    threads.submit("a", first)
    until(lambda: len(threads) == 0)
    threads.submit("a", second)
    assert not threads.withdraw("a", first)
    assert threads.withdraw("a", second)
    assert not threads.withdraw("a", second)
    last = threading.Event()
    threads.submit("a", last.set)
    go.set()
    assert last.wait(PATIENCE_S)
    assert done == []
    threads.shutdown()
    with pytest.raises(RuntimeError):
        threads.submit("a", second)


def _ignore(value: object) -> None:
    """Jobs return nothing."""
