from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.calls import FAILED, OK, is_failure
from jaxd_protocol.messages.failures import decode_failure, encode_failure
from jaxd_server.execution.call import Finish, Reply
from jaxd_server.rpc.ordered_calls import MAX_BYTES, MAX_DISPATCHED, OrderedCallQueue, ReplyCache
from tests.server.staging import PATIENCE_S, at_once, until


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
    call_queue.then(lambda: work.log.append("first"))  # at once: there is nothing before it
    go_on = call_queue.enqueue(partial(work.start, 0), work.send, is_short=True, at_once=at_once)
    work.put(call_queue, 1)
    call_queue.then(lambda: work.log.append("then"))
    go_on()
    until(lambda: len(work.replies) == 2 and "then" in work.log)
    assert [line for line in work.log if "finish" not in line] == [
        *("first", "start 0"),
        *("start 1", "then"),
    ]


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


REPLY: Reply = ((OK, "done"), ())
LOST: Reply = ((FAILED, encode_failure(ConnectionLost("went away")), b""), ())


class Sent(list[Reply]):
    """Collects what is sent to one client."""

    def __call__(self, reply: Reply) -> None:
        self.append(reply)


def is_new(remembered: ReplyCache, *call: Any) -> bool:
    """Whether a call is; one that is not is answered."""
    answer = remembered.find_or_register(*call)
    if answer is not None:
        answer()
    return answer is None


def test_a_call_that_comes_again_is_not_run_again() -> None:
    """While the first still runs, both are answered when it is done; after that, at once."""
    remembered, first, again, late = ReplyCache(), Sent(), Sent(), Sent()
    assert is_new(remembered, 1, 0, first)
    assert not is_new(remembered, 1, 0, again)
    assert first == again == []
    remembered.answer(1, REPLY)
    assert not is_new(remembered, 1, 0, late)
    assert (first, again, late) == ([REPLY], [REPLY], [REPLY])


def test_what_has_arrived_is_forgotten() -> None:
    """And what has not is kept; but for what its client gave up."""
    remembered = ReplyCache()
    is_new(remembered, 0, 0, Sent())
    for number in (1, 2, 3):
        is_new(remembered, number, 0, Sent())
        remembered.answer(number, REPLY)
    is_new(remembered, 4, 3, Sent())
    remembered.answer(0, REPLY)
    assert list(remembered._replies) == [3]
    sent = Sent()
    assert not is_new(remembered, 3, 3, sent)
    assert sent == [REPLY]


def test_a_call_whose_answer_has_arrived_is_never_run_again() -> None:
    """It may have lain in a connection that was lost; also after the others were forgotten."""
    remembered, stale = ReplyCache(), Sent()
    is_new(remembered, 1, 0, Sent())
    remembered.answer(1, REPLY)
    is_new(remembered, 2, 2, Sent())
    assert not is_new(remembered, 1, 0, stale)
    ((outcome, _),) = stale
    assert (outcome[0], outcome[2]) == (FAILED, b"")
    with pytest.raises(ConnectionLost, match="answered before"):
        raise decode_failure(outcome[1])


def test_a_client_that_never_acknowledges_is_not_remembered_for_ever() -> None:
    """The oldest go first."""
    remembered = ReplyCache()
    for number in range(1100):
        is_new(remembered, number, 0, Sent())
        remembered.answer(number, REPLY)
    assert len(remembered._replies) == 1024
    assert not is_new(remembered, 1099, 0, Sent())


def test_many_threads_run_a_call_once() -> None:
    """And each of them gets the answer."""
    remembered = ReplyCache()
    sent = [Sent() for _ in range(8)]
    for number in range(200):

        def meet(index: int, number: int = number) -> Any:
            new = is_new(remembered, number, number, sent[index])
            if new:
                remembered.answer(number, REPLY)
            return new

        assert sum(at_once(8, partial(meet))) == 1
    assert [len(each) for each in sent] == [200] * 8


def test_a_call_that_lost_its_client_begins_anew_for_who_sends_it_again() -> None:
    """It could not ask what its function is, so it has not run."""
    remembered, first, second, begun = ReplyCache(), Sent(), Sent(), list[int]()
    assert is_new(remembered, 1, 0, first)
    assert not is_new(remembered, 1, 0, second, lambda: begun.append(1))
    remembered.answer(1, LOST)
    assert (first, second, begun) == ([LOST], [], [1])
    remembered.answer(1, REPLY)
    assert (first, second) == ([LOST], [REPLY])
    assert not is_new(remembered, 1, 0, Sent())


def test_a_call_that_lost_its_client_is_new_when_it_is_sent_again_later() -> None:
    """But not one that has taken something for good, nor one that failed in another way."""
    remembered = ReplyCache()
    for number, reply, begins in [
        (1, LOST, True),
        (2, ((*LOST[0][:2], b"\0\0\0\0"), ()), False),
        (3, ((FAILED, encode_failure(ZeroDivisionError()), b""), ()), False),
    ]:
        assert is_new(remembered, number, 0, Sent())
        remembered.answer(number, reply)
        assert is_new(remembered, number, 0, Sent()) == begins


def test_large_replies_are_held_up_to_a_limit() -> None:
    """The last one always; of the others the newest. Who asks for an older one learns why not."""
    remembered, size = ReplyCache(), MAX_BYTES // 2
    large: Reply = (("done",), [memoryview(bytes(size))])
    for number in (1, 2, 3):
        assert is_new(remembered, number, 0, Sent())
        remembered.answer(number, large if number < 3 else REPLY)
    kept = Sent()
    for number in (1, 2, 3):
        assert not is_new(remembered, number, 0, kept)
    assert kept == [large, large, REPLY]
    assert is_new(remembered, 4, 0, Sent())
    remembered.answer(4, (("done",), [memoryview(bytes(3 * size))]))
    found = Sent()
    for number in (1, 3, 4):
        assert not is_new(remembered, number, 0, found)
    assert is_failure(found[0][0][1], ConnectionLost)
    assert found[1] == REPLY
    assert len(found[2][1][0]) == 3 * size
