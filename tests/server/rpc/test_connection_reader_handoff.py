from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from jaxd_server.rpc import worker_context as module
from jaxd_server.rpc.connection import ReaderHandoff
from jaxd_server.rpc.worker_context import STALL_S, StallWatchdog
from tests.server import staging
from tests.server.staging import join, start, until


class Line:
    """A connection on paper: each message is a function that the reading thread runs."""

    def __init__(self, *messages: Callable[[], None]) -> None:
        self.messages = list(messages)
        self.readers: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.more = threading.Semaphore(len(messages))
        self.reader_handoff = ReaderHandoff(self.read_one, self.end, self.errors.append)

    def read_one(self) -> None:
        """Waits for the next message and runs it."""
        self.readers.append(threading.current_thread())
        assert self.more.acquire(timeout=staging.PATIENCE_S)
        if not self.messages:
            raise EOFError
        self.messages.pop(0)()

    def put(self, *messages: Callable[[], None]) -> None:
        """More messages arrive."""
        self.messages += messages
        self.more.release(len(messages))

    def end(self) -> None:
        """The peer leaves; every reader sees it."""
        self.more.release(10)


class Stuck:
    """A call that the reading thread runs itself, and that takes as long as the test wants."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.watchdog: StallWatchdog | None = None
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        assert self.line is not None
        turn = self.line.reader_handoff.begin_inline()
        if self.watchdog is not None and self.watchdog.is_idle:
            self.watchdog.wake()
        self.entered.set()
        assert self.release.wait(staging.PATIENCE_S)
        self.line.reader_handoff.end_inline(turn)


def with_stuck(*, watchdog: StallWatchdog | None = None) -> tuple[Line, Stuck]:
    """A line whose first message is a call that does not return."""
    stuck = Stuck()
    line = Line(stuck)
    stuck.line, stuck.watchdog = line, watchdog
    return line, stuck


FAR = float("inf")


def test_nobody_is_replaced_before_its_time() -> None:
    """Neither who waits for a message, for however long, nor a call before `STALL_S` is over."""
    line, stuck = with_stuck()
    reader = start(line.reader_handoff.run)
    assert stuck.entered.wait(staging.PATIENCE_S)
    busy_since = line.reader_handoff.busy_since
    assert busy_since is not None
    line.reader_handoff.replace_if_stuck(busy_since + STALL_S / 2)
    assert line.reader_handoff.busy_since == busy_since
    stuck.release.set()
    until(lambda: len(line.readers) == 2)
    line.reader_handoff.replace_if_stuck(FAR)
    line.end()
    join([reader])
    assert line.readers == [reader] * 2
    assert [type(error) for error in line.errors] == [EOFError]


def test_a_call_that_overstays_lets_another_thread_read_on() -> None:
    """While it still runs. When it is done its thread leaves, and the connection is not over."""
    line, stuck = with_stuck()
    reader = start(line.reader_handoff.run)
    assert stuck.entered.wait(staging.PATIENCE_S)
    line.reader_handoff.replace_if_stuck(FAR)
    for turn in range(6):
        handled = threading.Event()
        line.put(handled.set)
        assert handled.wait(staging.PATIENCE_S)
        if turn == 0:
            stuck.release.set()
            join([reader])
    assert (line.readers.count(reader), line.errors) == (1, [])
    line.end()
    until(lambda: line.errors)


def test_the_second_thread_can_be_replaced_too() -> None:
    """The first one's return does not make the second one's call look finished."""
    line, first = with_stuck()
    threads = [start(line.reader_handoff.run)]
    assert first.entered.wait(staging.PATIENCE_S)
    line.reader_handoff.replace_if_stuck(FAR)
    second = Stuck()
    second.line = line
    line.put(second)
    assert second.entered.wait(staging.PATIENCE_S)
    first.release.set()
    join(threads)
    assert line.reader_handoff.busy_since is not None
    line.reader_handoff.replace_if_stuck(FAR)
    handled = threading.Event()
    line.put(handled.set)
    assert handled.wait(staging.PATIENCE_S)
    second.release.set()
    line.end()
    until(lambda: line.errors)


def test_a_thread_that_is_replaced_as_it_begins_its_call_knows_its_own_turn() -> None:
    """Otherwise its return would hide that its successor is busy."""

    class Overtaken(ReaderHandoff):
        @property
        def busy_since(self) -> float | None:
            return self._busy_since

        @busy_since.setter
        def busy_since(self, value: float | None) -> None:
            self._busy_since = value
            if value is not None and not replaced:
                replaced.append(value)
                self.replace_if_stuck(FAR)

    replaced: list[float] = []
    ended = threading.Event()

    def read_one() -> None:
        raise EOFError

    reader_handoff = Overtaken(read_one, lambda: None, lambda error: ended.set())
    turn = reader_handoff.begin_inline()
    assert ended.wait(staging.PATIENCE_S)
    reader_handoff.busy_since = 1.0
    reader_handoff.end_inline(turn)
    assert reader_handoff.busy_since == 1.0


def test_a_failure_in_a_replaced_thread_ends_the_connection_once() -> None:
    """Its successor must not be left reading for nobody, nor the end be told twice."""

    def fail() -> None:
        stuck()
        raise RuntimeError("the reply could not be sent")

    line, stuck = with_stuck()
    line.messages[0] = fail
    reader = start(line.reader_handoff.run)
    assert stuck.entered.wait(staging.PATIENCE_S)
    line.reader_handoff.replace_if_stuck(FAR)
    until(lambda: len(line.readers) == 2)
    stuck.release.set()
    join([reader, line.readers[1]])
    assert [str(error) for error in line.errors] == ["the reply could not be sent"]


def test_who_leaves_reads_no_more_and_the_next_one_goes_on() -> None:
    """Nobody is in charge in between, and none is put in charge; the end is told once."""
    line = Line()
    line.put(line.reader_handoff.leave)
    line.reader_handoff.run()
    line.reader_handoff.replace_if_stuck(FAR)
    assert (len(line.readers), line.errors) == (1, [])
    seen: list[int] = []
    line.put(lambda: seen.append(1))
    line.end()
    reader = start(line.reader_handoff.run)
    join([reader])
    assert (seen, [type(error) for error in line.errors]) == ([1], [EOFError])


def test_a_failure_in_a_replaced_thread_ends_a_connection_that_was_left() -> None:
    """Who takes it up finds the end, and tells the first error."""

    def fail() -> None:
        stuck()
        raise RuntimeError("the reply could not be sent")

    line, stuck = with_stuck()
    line.messages[0] = fail
    reader = start(line.reader_handoff.run)
    assert stuck.entered.wait(staging.PATIENCE_S)
    line.reader_handoff.replace_if_stuck(FAR)
    line.put(line.reader_handoff.leave)
    until(lambda: len(line.readers) == 2 and not line.readers[1].is_alive())
    stuck.release.set()
    join([reader])
    assert line.errors == []
    line.reader_handoff.run()
    assert [str(error) for error in line.errors] == ["the reply could not be sent"]


@pytest.fixture
def watchdog() -> Iterator[StallWatchdog]:
    """A running one."""
    watchdog = StallWatchdog()
    yield watchdog
    watchdog.stop()


@pytest.mark.slow
def test_a_dozing_watchdog_is_roused_every_time(
    watchdog: StallWatchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two comes first, the doze or the call: no wake-up is lost."""
    monkeypatch.setattr(module, "_IDLE_S", 0.001)  # it dozes off after each look
    monkeypatch.setattr(module, "STALL_S", 0.0)
    line = Line()
    watchdog.watch(line.reader_handoff)
    start(line.reader_handoff.run)
    for number in range(1, 101):
        stuck = Stuck()
        stuck.line, stuck.watchdog = line, watchdog
        line.put(stuck)
        until(lambda number=number: len(line.readers) > number)  # type: ignore[misc]
        stuck.release.set()
    line.end()
    until(lambda: line.errors)


def test_a_connection_that_ended_is_not_looked_after(watchdog: StallWatchdog) -> None:
    """Its last call may go on for as long as it likes."""
    gone, other = with_stuck(watchdog=watchdog), with_stuck(watchdog=watchdog)
    watchdog.watch(gone[0].reader_handoff)
    watchdog.watch(other[0].reader_handoff)
    watchdog.unwatch(gone[0].reader_handoff)
    for line, _ in (gone, other):
        start(line.reader_handoff.run)
    until(lambda: len(other[0].readers) == 2)
    assert len(gone[0].readers) == 1
    for line, stuck in (gone, other):
        stuck.release.set()
        line.end()
        until(lambda line=line: line.errors)  # type: ignore[misc]


def test_a_stopped_watchdog_is_gone() -> None:
    """Its thread ends, dozing or not."""
    before = set(threading.enumerate())
    watchdog = StallWatchdog()
    (thread,) = set(threading.enumerate()) - before
    watchdog.stop()
    join([thread])


def test_without_threads_the_reader_stays_in_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not replaced by nobody: it reads on when its call is done."""
    read: list[str] = []
    line = Line(lambda: read.append("first"), lambda: read.append("second"))
    turn = line.reader_handoff.begin_inline()

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        line.reader_handoff.replace_if_stuck(line.reader_handoff.busy_since + 1)  # type: ignore[operator]
    assert line.reader_handoff.busy_since is not None
    line.reader_handoff.end_inline(turn)
    line.end()
    line.reader_handoff.run()
    assert read == ["first", "second"]
