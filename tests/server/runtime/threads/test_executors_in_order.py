from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxd_server.runtime.threads.executors import SerialExecutor
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting

if TYPE_CHECKING:
    import pytest


def test_what_is_put_is_sent_in_order_and_nobody_waits() -> None:
    """Also behind one that takes for ever."""
    send_queue, release, sent = SerialExecutor("of a test"), threading.Event(), list[int]()
    send_queue.put(partial(join, [start(release.wait, PATIENCE_S)]))
    for index in range(5):
        send_queue.put(lambda index=index: sent.append(index))  # type: ignore[misc]
    until(lambda: len(send_queue) == 5)
    assert sent == []
    release.set()
    until(lambda: len(sent) == 5)
    assert sent == [0, 1, 2, 3, 4]


def test_its_thread_ends_when_all_is_sent() -> None:
    """And the next message starts another."""
    send_queue, threads = SerialExecutor("of a test"), list[threading.Thread]()
    for count in (1, 2):
        send_queue.put(lambda: threads.append(threading.current_thread()))
        until(lambda count=count: len(threads) == count)  # type: ignore[misc]
        threads[-1].join(PATIENCE_S)
        assert not threads[-1].is_alive()


def test_without_threads_the_caller_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better late than never."""

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    send_queue, sent = SerialExecutor("of a test"), list[int]()
    for index in range(2):
        send_queue.put(lambda index=index: sent.append(index))  # type: ignore[misc]
    assert sent == [0, 1]


def test_a_thread_that_lingers_does_what_comes_next() -> None:
    """It need not be started again."""
    line, threads = SerialExecutor("of a test", linger_s=PATIENCE_S), list[int]()
    for count in (1, 2, 3):
        line.put(lambda: threads.append(threading.get_ident()))
        until(lambda count=count: len(threads) == count)  # type: ignore[misc]
        until(lambda: waiting(line._changed) == 1)
    assert len(set(threads)) == 1


def test_a_thread_that_has_lingered_long_enough_ends() -> None:
    """And leaves the line to the next one."""
    line, threads = SerialExecutor("of a test", linger_s=1e-4), list[threading.Thread]()
    for count in (1, 2):
        line.put(lambda: threads.append(threading.current_thread()))
        until(lambda count=count: len(threads) == count)  # type: ignore[misc]
        threads[-1].join(PATIENCE_S)
        assert not threads[-1].is_alive()
        assert not line.is_working


def test_threads_that_come_and_go_lose_nothing_and_never_work_at_once() -> None:
    """With one that lingers about as long as it takes for the next job to come."""
    line, done, inside = (
        SerialExecutor("of a test", linger_s=1e-5),
        list[tuple[int, int]](),
        list[int](),
    )

    def job(index: int, turn: int) -> None:
        inside.append(1)
        done.append((index, turn))
        assert len(inside) == 1
        inside.pop()

    def many(index: int) -> None:
        for turn in range(500):
            line.put(partial(job, index, turn))

    assert at_once(4, many) == [None] * 4
    until(lambda: len(done) == 2000)
    for index in range(4):
        assert [turn for who, turn in done if who == index] == list(range(500))
    until(lambda: not line.is_working)


def test_a_job_that_fails_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it raises."""
    line, done = SerialExecutor("of a test"), list[int]()

    def fail() -> None:
        raise ValueError("it cannot be done")

    line.put(fail)
    line.put(lambda: done.append(1))
    assert line.flush(PATIENCE_S)
    assert done == [1]
    assert "job_failed" in caplog.text


def test_who_flushes_waits_for_what_was_put_before() -> None:
    """As long as it likes to."""
    line, release, done = SerialExecutor("of a test"), threading.Event(), list[int]()
    assert line.flush(0)
    line.put(partial(join, [start(release.wait, PATIENCE_S)]))
    line.put(lambda: done.append(1))
    assert not line.flush(0)
    release.set()
    assert line.flush()
    assert done == [1]
