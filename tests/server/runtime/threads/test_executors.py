from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost, JaxdError, ProtocolError
from jaxd_server.runtime.threads.executors import (
    FairThreadPool,
    SerialExecutor,
    SingleFlight,
    ThreadPerTask,
    process_timers,
)
from jaxd_server.runtime.threads.fairness import FairQueue, FairSemaphore
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
    """Which is gone afterwards; what it raises is in its future, and the next one runs."""
    threads = ThreadPerTask(4, "test-job")
    name = threads.submit(lambda: threading.current_thread().name).result(PATIENCE_S)
    assert name == "test-job"
    until(lambda: all(thread.name != "test-job" for thread in threading.enumerate()))
    threads = ThreadPerTask(1, "test-job")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE_S)
    assert threads.submit(lambda: 2).result(PATIENCE_S) == 2


def test_jobs_may_wait_for_each_other() -> None:
    """None stands behind another, up to the limit; whoever brings one more waits."""
    threads = ThreadPerTask(8, "test-job")
    barrier = threading.Barrier(8)
    futures = [threads.submit(barrier.wait, PATIENCE_S) for _ in range(8)]
    assert sorted(future.result(PATIENCE_S) for future in futures) == list(range(8))
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


@pytest.mark.parametrize("linger_s", [0.0, 1e-4])
def test_a_thread_that_has_lingered_long_enough_ends(linger_s: float) -> None:
    """At once when all is done, or after a while; and leaves the line to the next one."""
    line, threads = SerialExecutor("of a test", linger_s=linger_s), list[threading.Thread]()
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
    """Whatever it raises; an alarm that fails does not end the thread of the timers."""
    line, done = SerialExecutor("of a test"), list[int]()

    def fail() -> None:
        raise ValueError("it cannot be done")

    line.put(fail)
    line.put(lambda: done.append(1))
    assert line.flush(PATIENCE_S)
    assert done == [1]
    assert "job_failed" in caplog.text
    after = threading.Event()
    process_timers.after(0.0, fail)
    process_timers.after(0.0, after.set)
    assert after.wait(PATIENCE_S)
    assert "alarm_failed" in caplog.text


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


def test_each_owner_has_its_turn() -> None:
    """However much one has waiting; what is not wanted any more is taken out."""
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put("many", f"many {number}")
    queue.put("one", "one 0")
    queue.put("two", "two 0")
    assert len(queue) == 5
    taken = [queue.get() for _ in range(6)]
    assert taken == ["many 0", "one 0", "two 0", "many 1", "many 2", None]
    queue.put("a", "a 0")
    queue.put("a", "a 1")
    queue.put("b", "b 0")
    assert queue.remove("a", "a 1")
    assert not queue.remove("a", "a 1")
    assert queue.remove("b", "b 0")
    assert not queue.remove("b", "b 0")
    assert [queue.get(), queue.get(), len(queue)] == ["a 0", None, 0]


def test_only_so_many_are_inside() -> None:
    """The next one comes in when one goes."""
    fair_semaphore, inside, go = FairSemaphore(2), [], threading.Semaphore(0)

    def visit() -> None:
        assert fair_semaphore.enter(None)
        inside.append(1)
        go.acquire()
        inside.pop()
        fair_semaphore.leave()

    threads = [start(visit) for _ in range(5)]
    until(lambda: len(fair_semaphore) == 3)
    assert len(inside) == 2
    for _ in threads:
        go.release()
    join(threads)
    assert (inside, len(fair_semaphore)) == ([], 0)


def test_owners_take_turns() -> None:
    """One who comes after many of another's waits for one of them."""
    fair_semaphore, order = FairSemaphore(1), []
    assert fair_semaphore.enter("first")

    def visit(owner: str) -> None:
        assert fair_semaphore.enter(owner)
        order.append(owner)
        fair_semaphore.leave()

    threads = []
    for count, owner in enumerate(["many", "many", "many", "one"], 1):
        threads.append(start(visit, owner))
        until(lambda count=count: len(fair_semaphore) == count)  # type: ignore[misc]
    fair_semaphore.leave()
    join(threads)
    assert order == ["many", "one", "many", "many"]


def test_waiting_ends_when_it_is_pointless() -> None:
    """Without a turn, which goes to the next."""
    fair_semaphore = FairSemaphore(1)
    assert fair_semaphore.enter("inside")
    hooks: list[Callable[[], None]] = []

    @contextmanager
    def cancel_hook(hook: Callable[[], None]) -> Iterator[None]:
        hooks.append(hook)
        yield

    came: list[bool] = []
    leaving = start(lambda: came.append(fair_semaphore.enter("leaving", cancel_hook)))
    until(lambda: hooks)
    staying = start(lambda: came.append(fair_semaphore.enter("staying")))
    until(lambda: len(fair_semaphore) == 2)
    hooks[0]()
    join([leaving])
    assert (came, len(fair_semaphore)) == ([False], 1)
    fair_semaphore.leave()
    join([staying])
    assert came == [False, True]


class ConcurrentBuild:
    """One result that several threads wait for."""

    def __init__(self) -> None:
        self.flight: SingleFlight[str, str] = SingleFlight()
        self.table: dict[str, str] = {}
        self.made = 0
        self.failures: list[BaseException] = []

    def wait_for_others(self, key: str, count: int) -> None:
        """Returns when `count` callers wait for what is being made."""
        until(lambda: waiting(self.flight._flights[key]._condition) == count)

    def ask(self, key: str, others: int = 0) -> str:
        """Asks for it; whoever makes it first lets `others` join."""
        return self.flight.run(key, lambda: self.table.get(key), lambda: self.make(key, others))

    def make(self, key: str, others: int) -> str:
        """Fails as often as there are failures."""
        self.made += 1
        self.wait_for_others(key, others)
        if self.failures:
            raise self.failures.pop()
        self.table[key] = f"{key} {self.made}"
        return self.table[key]


def test_many_who_ask_at_once_get_what_one_of_them_made() -> None:
    """It is made once, and they wait; what is in the table then is not made again."""
    concurrent_build = ConcurrentBuild()
    assert at_once(8, lambda _: concurrent_build.ask("bread", others=7)) == ["bread 1"] * 8
    assert [concurrent_build.ask("bread") for _ in range(3)] == ["bread 1"] * 3
    assert concurrent_build.made == 1


def test_a_failure_reaches_all_who_waited_and_is_not_remembered() -> None:
    """The next one who asks makes it anew."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [ValueError("burnt")]
    outcomes: list[Any] = at_once(4, lambda _: concurrent_build.ask("bread", others=3))
    assert [(type(error), str(error)) for error in outcomes] == [(ValueError, "burnt")] * 4
    assert concurrent_build.ask("bread") == "bread 2"


def test_even_the_end_of_a_thread_reaches_those_who_wait() -> None:
    """A function that calls `sys.exit` leaves nobody waiting; a client that fails alone is told."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [SystemExit(3)]
    with pytest.raises(SystemExit):
        concurrent_build.ask("bread")
    assert concurrent_build.ask("bread") == "bread 2"
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [ConnectionLost("gone")]
    with pytest.raises(ConnectionLost):
        concurrent_build.ask("bread")
    assert concurrent_build.made == 1


@pytest.mark.parametrize("error", [ConnectionLost("gone"), ProtocolError("confused")])
def test_one_client_that_fails_does_not_fail_the_others(error: JaxdError) -> None:
    """Whoever waited for its answer asks a client of its own, and one is enough for all."""
    concurrent_build = ConcurrentBuild()
    concurrent_build.failures = [error]

    def ask(index: int) -> str:
        return concurrent_build.ask("bread", others=3 if not concurrent_build.made else 0)

    outcomes = at_once(4, ask)
    assert sum(outcome is error for outcome in outcomes) == 1
    assert outcomes.count("bread 2") == 3


def test_different_things_are_made_side_by_side() -> None:
    """A slow one holds up nobody who asks for another."""
    flight: SingleFlight[str, str] = SingleFlight()
    entered, release = threading.Event(), threading.Event()

    def slowly() -> str:
        entered.set()
        assert release.wait(PATIENCE_S)
        return "slow"

    slow = start(lambda: flight.run("slow", lambda: None, slowly))
    assert entered.wait(PATIENCE_S)
    assert flight.run("fast", lambda: None, lambda: "fast") == "fast"
    release.set()
    join([slow])
