from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from jaxd_server.runtime.threads.executors import (
    FairThreadPool,
    SerialExecutor,
    ThreadPerTask,
    process_timers,
)
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting


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


def _ignore(value: object) -> None:
    """Jobs return nothing."""


def test_a_job_runs_in_a_thread_of_its_own() -> None:
    """Which is gone afterwards."""
    threads = ThreadPerTask(4, "test-job")
    name = threads.submit(lambda: threading.current_thread().name).result(PATIENCE_S)
    assert name == "test-job"
    until(lambda: all(thread.name != "test-job" for thread in threading.enumerate()))


def test_what_a_job_raises_is_in_its_future() -> None:
    """And the next one runs."""
    threads = ThreadPerTask(1, "test-job")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE_S)
    assert threads.submit(lambda: 2).result(PATIENCE_S) == 2


def test_jobs_may_wait_for_each_other() -> None:
    """None stands behind another, up to the limit."""
    threads = ThreadPerTask(8, "test-job")
    barrier = threading.Barrier(8)
    futures = [threads.submit(barrier.wait, PATIENCE_S) for _ in range(8)]
    assert sorted(future.result(PATIENCE_S) for future in futures) == list(range(8))


def test_there_are_never_more_than_the_limit() -> None:
    """Whoever brings one more waits."""
    threads = ThreadPerTask(1, "test-job")
    release, begun = threading.Event(), threading.Event()
    threads.submit(release.wait, PATIENCE_S)
    late = threading.Thread(target=lambda: threads.submit(begun.set))
    late.start()
    assert not begun.is_set()
    release.set()
    late.join(PATIENCE_S)
    assert begun.wait(PATIENCE_S)


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


def test_an_alarm_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As `alarm_failed`; the thread of the timers goes on."""
    after = threading.Event()

    def fail() -> None:
        raise ValueError("broken")

    process_timers.after(0.0, fail)
    process_timers.after(0.0, after.set)
    assert after.wait(PATIENCE_S)
    assert "alarm_failed" in caplog.text
