from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from jaxd_server.execution.call import Finish, Reply
from jaxd_server.rpc.ordered_calls import MAX_DISPATCHED, OrderedCallQueue
from tests.server.staging import PATIENCE_S, at_once, start, until


class Work:
    """Calls that say what happens to them, and end when the test says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.replies: list[Any] = []
        self.gates: dict[Any, threading.Event] = {}

    def gate(self, name: Any) -> threading.Event:
        """What a call of that name waits for."""
        return self.gates.setdefault(name, threading.Event())

    def start(self, name: Any, *, held: bool = False, slow: bool = False) -> Finish:
        """Begins a call: `held` waits in its start, `slow` on the device."""
        if held:
            self.gate(name).wait(PATIENCE_S)
        self.log.append(f"start {name}")

        def finish() -> Reply:
            if slow:
                self.gate(name).wait(PATIENCE_S)
            self.log.append(f"finish {name}")
            return (name,), ()

        return finish

    def send(self, reply: Reply) -> None:
        """Takes a reply."""
        self.replies.append(reply[0][0])

    def put(
        self, call_queue: OrderedCallQueue, name: Any, *, is_short: bool = False, **how: bool
    ) -> None:
        """One call."""
        call_queue.put(partial(self.start, name, **how), self.send, is_short=is_short)


def test_calls_start_in_order_and_their_replies_are_sent() -> None:
    """Whoever is slow to begin keeps those behind it waiting."""
    call_queue, work = OrderedCallQueue(), Work()
    work.put(call_queue, 0, held=True)
    for number in (1, 2, 3):
        work.put(call_queue, number)
    assert work.log == []
    work.gate(0).set()
    until(lambda: len(work.replies) == 4)
    assert work.replies == [0, 1, 2, 3]
    assert [line for line in work.log if "start" in line] == [f"start {i}" for i in range(4)]


def test_the_next_is_started_while_the_device_works_on_the_last() -> None:
    """A few of them, and no more."""
    call_queue, work = OrderedCallQueue(), Work()
    for number in range(MAX_DISPATCHED + 2):
        work.put(call_queue, number, slow=True)
    until(lambda: len(work.log) == MAX_DISPATCHED)
    assert work.replies == []
    work.gate(0).set()
    until(lambda: len(work.log) == MAX_DISPATCHED + 2)  # one done, one more started
    assert work.log[-2:] == ["finish 0", f"start {MAX_DISPATCHED}"]
    for number in range(1, MAX_DISPATCHED + 2):
        work.gate(number).set()
    until(lambda: len(work.replies) == MAX_DISPATCHED + 2)
    assert work.replies == list(range(MAX_DISPATCHED + 2))


def test_a_reply_that_cannot_be_sent_at_once_gives_its_place_free() -> None:
    """What a client does with its replies is not what the others wait for."""
    call_queue, work, read = OrderedCallQueue(), Work(), threading.Event()

    def send_slowly(reply: Reply) -> None:
        read.wait(PATIENCE_S)
        work.send(reply)

    call_queue.put(partial(work.start, "unread"), send_slowly)
    for number in range(MAX_DISPATCHED):
        work.put(call_queue, number, slow=True)
    until(lambda: f"start {MAX_DISPATCHED - 1}" in work.log)
    read.set()
    for number in range(MAX_DISPATCHED):
        work.gate(number).set()
    until(lambda: len(work.replies) == MAX_DISPATCHED + 1)


def test_a_call_runs_at_once_when_nothing_is_before_it() -> None:
    """In the thread that asks; otherwise behind it."""
    call_queue, work = OrderedCallQueue(), Work()
    call_queue.enqueue(partial(work.start, "now"), work.send, at_once=True)()
    assert work.replies == ["now"]
    work.put(call_queue, "held", held=True)
    assert not call_queue.is_idle
    call_queue.enqueue(partial(work.start, "behind"), work.send, at_once=True)()
    work.gate("held").set()
    until(lambda: work.replies == ["now", "held", "behind"])
    until(lambda: call_queue.is_idle)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_has_its_place_before_anybody_goes_on_with_it(at_once: bool) -> None:
    """Whoever read it may be held up; then another thread brings the next one."""
    call_queue, work = OrderedCallQueue(), Work()
    go_on = call_queue.enqueue(partial(work.start, 0), work.send, is_short=True, at_once=at_once)
    work.put(call_queue, 1)
    call_queue.then(lambda: work.log.append("then"))
    go_on()
    until(lambda: len(work.replies) == 2 and "then" in work.log)
    assert [line for line in work.log if "finish" not in line] == ["start 0", "start 1", "then"]


def test_a_call_that_comes_while_another_runs_at_once_is_behind_it() -> None:
    """And is started when that is done, by a thread of its own."""
    call_queue, work = OrderedCallQueue(), Work()
    first = start(
        call_queue.enqueue(partial(work.start, "first", held=True), work.send, at_once=True)
    )
    until(lambda: not call_queue.is_idle)
    work.put(call_queue, "second")
    work.gate("first").set()
    until(lambda: len(work.replies) == 2)
    first.join(PATIENCE_S)
    assert work.log == ["start first", "finish first", "start second", "finish second"]


def test_a_short_call_is_started_by_the_thread_that_brings_it() -> None:
    """As long as there is room: then by the one that sends a reply."""
    call_queue, work, threads = OrderedCallQueue(), Work(), list[str]()

    def put(name: Any, *, is_short: bool) -> None:
        def begin() -> Finish:
            threads.append(threading.current_thread().name)
            return work.start(name, slow=True)

        call_queue.put(begin, work.send, is_short=is_short)

    for number in range(MAX_DISPATCHED + 2):
        put(number, is_short=True)
    assert threads == [threading.current_thread().name] * MAX_DISPATCHED
    work.gate(0).set()
    until(lambda: len(threads) == MAX_DISPATCHED + 1)
    work.gate(1).set()
    until(lambda: len(threads) == MAX_DISPATCHED + 2)
    assert threads[MAX_DISPATCHED:] == ["jaxd-deliver"] * 2
    for number in range(2, MAX_DISPATCHED + 2):
        work.gate(number).set()
    until(lambda: len(work.replies) == MAX_DISPATCHED + 2)
    assert work.replies == list(range(MAX_DISPATCHED + 2))
    assert [line for line in work.log if "start" in line] == [
        f"start {number}" for number in range(MAX_DISPATCHED + 2)
    ]


def test_a_call_that_takes_long_to_start_has_a_thread_for_it() -> None:
    """Nobody who reads or sends waits for it, nor for a short one behind it."""
    call_queue, work = OrderedCallQueue(), Work()
    work.put(call_queue, "before", slow=True, is_short=True)
    work.put(call_queue, "long", held=True)
    work.put(call_queue, "short", is_short=True)
    work.gate("before").set()
    until(lambda: work.replies == ["before"])
    assert work.log == ["start before", "finish before"]
    work.gate("long").set()
    until(lambda: work.replies == ["before", "long", "short"])


def test_what_is_to_happen_then_happens_behind_all_that_were_started() -> None:
    """At once when there is nothing before it; calls that come later see it."""
    call_queue, work = OrderedCallQueue(), Work()
    call_queue.then(lambda: work.log.append("at once"))
    assert work.log == ["at once"]
    work.put(call_queue, 1, held=True)
    call_queue.then(lambda: work.log.append("then"))
    work.put(call_queue, 2)
    work.gate(1).set()
    until(lambda: len(work.replies) == 2)
    assert [line for line in work.log if "finish" not in line][1:] == ["start 1", "then", "start 2"]


def test_many_threads_start_one_at_a_time_and_each_in_its_order() -> None:
    """Some at once and some behind others, as it happens."""
    call_queue, work, inside = OrderedCallQueue(), Work(), list[int]()

    def begin(name: Any) -> Finish:
        inside.append(1)
        assert len(inside) == 1
        finish = work.start(name)
        inside.pop()
        return finish

    def many(index: int) -> None:
        for turn in range(200):
            call = partial(begin, (index, turn))
            call_queue.enqueue(call, work.send, is_short=turn % 2 == 0, at_once=turn % 3 > 0)()

    assert at_once(4, many) == [None] * 4
    until(lambda: len(work.replies) == 800)
    assert sorted(work.replies) == [(i, t) for i in range(4) for t in range(200)]
    for index in range(4):
        started = [line for line in work.log if line.startswith(f"start ({index},")]
        assert started == [f"start ({index}, {turn})" for turn in range(200)]
