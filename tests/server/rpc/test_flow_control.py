from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jaxd_protocol.errors import Busy, LimitExceeded
from jaxd_server.rpc import flow_control as module
from jaxd_server.rpc.flow_control import Backlog, CallBudget, ConnectionShare
from tests.server.staging import join, start, until, waiting


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


def test_what_is_taken_is_given_back() -> None:
    """With the end of its call; at once where it is no call, or when its connection ends."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 4)
    share.admit(60)
    share.release_message()
    assert budget.used == 0
    share.admit(30)
    share.admit(20)
    share.admit_strictly(40)  # what compressed data becomes
    nbytes = share.begin()
    assert (nbytes, budget.used) == (90, 90)
    share.end_call(nbytes)
    assert budget.used == 0
    share.admit(70)
    share.close()
    assert budget.used == 0


@pytest.mark.parametrize("admit", ["admit", "admit_strictly"])
def test_a_busy_connection_waits_for_room(admit: str) -> None:
    """Its reader takes no memory for the next message, or to inflate it, before a call is done."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 4)
    share.admit(60)
    nbytes = share.begin()
    reader = start(getattr(share, admit), 60)
    until(lambda: waiting(budget.changed))
    assert budget.used == 60
    share.end_call(nbytes)
    join([reader])
    assert budget.used == 60


def test_room_that_another_connection_makes_is_noticed() -> None:
    """The bytes are counted over all of them."""
    budget = CallBudget(100)
    ours, other = ConnectionShare(budget, 4), ConnectionShare(budget, 4)
    other.admit(90)
    theirs = other.begin()
    ours.begin()
    reader = start(ours.admit, 20)
    until(lambda: waiting(budget.changed))
    other.end_call(theirs)
    join([reader])
    assert budget.used == 20


def test_an_idle_connection_is_always_let_in() -> None:
    """One message at a time, however large it is and whatever others hold."""
    budget = CallBudget(100)
    other = ConnectionShare(budget, 4)
    other.admit(100)
    other.begin()
    share = ConnectionShare(budget, 4)
    share.admit(10_000)
    assert budget.used == 10_100


def test_calls_beyond_the_slots_wait() -> None:
    """Until one of the running ones ends."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 2)
    share.begin()
    share.begin()
    third = start(share.begin)
    until(lambda: waiting(budget.changed))
    assert third.is_alive()
    share.end_call(0)
    join([third])


def test_a_parked_call_blocks_neither_slots_nor_bytes() -> None:
    """The answer that it waits for must be able to arrive; who waits already is woken."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 1)
    share.admit(100)
    first = share.begin()
    reader = start(share.admit, 5_000)
    until(lambda: waiting(budget.changed))
    share.park()
    join([reader])
    share.release_message()
    with pytest.raises(Busy):
        share.admit_strictly(60)  # at once: its answer may be behind that
    second = share.begin()
    share.end_call(second)
    share.unpark()
    share.end_call(first)
    assert budget.used == 0


@pytest.mark.parametrize("wait", ["admit", "admit_strictly", "begin"])
def test_closing_wakes_a_waiting_reader(wait: str) -> None:
    """And what it was about to take is not counted, because nobody would give it back."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 1)
    share.admit(80)
    nbytes = share.begin()
    reader = start(getattr(share, wait), *([] if wait == "begin" else [50]))
    until(lambda: waiting(budget.changed))
    share.close()
    join([reader])
    share.end_call(nbytes)
    assert budget.used == 0


class _Watched(CallBudget):
    """Notes when the limit was passed by a connection that was not idle."""

    def __init__(self, limit: int) -> None:
        self.violations: list[int] = []
        self.peak = 0
        self.thread = threading.local()
        super().__init__(limit)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "used" and value > getattr(self, "used", 0):
            share: ConnectionShare | None = getattr(self.thread, "share", None)
            self.peak = max(self.peak, value)
            if value > self.limit and share is not None and share._calls > share._parked:
                self.violations.append(value)
        super().__setattr__(name, value)


def test_many_connections_stay_within_the_limit_and_all_make_progress() -> None:
    """Only a connection without a running call goes beyond it, and nothing is lost or kept."""
    budget = _Watched(1_000)

    def read(share: ConnectionShare, seed: int) -> None:
        budget.thread.share = share
        for number in range(100):
            share.admit((number * seed * 37) % 700)
            runners.submit(share.end_call, share.begin())

    with ThreadPoolExecutor(3) as runners:
        join([start(read, ConnectionShare(budget, 4), seed) for seed in range(1, 7)])
    assert budget.used == 0
    assert budget.violations == []
    assert budget.peak > 0


def test_one_principal_leaves_room_for_others_that_are_there() -> None:
    """Alone it may use everything; and what is free, as long as it has no calls."""
    budget = CallBudget(100, share=0.5)
    one = ConnectionShare(budget, 8, "one")
    for _ in range(2):
        one.admit(40)
        one.begin()
    assert budget.used_by["one"] == 80
    other = ConnectionShare(budget, 8, "other")
    assert not budget.has_room("one", 10)
    assert budget.has_room("other", 20)
    other.close()
    assert budget.has_room("one", 20)
    one.end_call(80)
    assert (budget.used, budget.used_by["one"]) == (0, 0)
    ConnectionShare(budget, 4, "third").admit_strictly(80)
    assert budget.used == 80


def test_a_client_that_does_not_take_its_results_brings_no_more_calls() -> None:
    """Until it has taken some; what is small does not count."""
    budget = CallBudget(100)
    share = ConnectionShare(budget, 8)
    share.begin()
    share.hold(budget.max_unsent + 1)
    came = threading.Event()

    def another() -> None:
        share.begin()
        came.set()

    thread = start(another)
    until(lambda: waiting(budget.changed))
    assert not came.is_set()
    share.hold(-2)
    join([thread])
    assert came.is_set()


# compressed data ----------------------------------------------------------------------------------


def test_compressed_data_is_never_over_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many idle connections bring some: each is told to come again."""
    monkeypatch.setattr(module, "_MAX_WAIT_S", 0.01)
    budget = CallBudget(100)
    shares = [ConnectionShare(budget, 4) for _ in range(9)]
    for share in shares:
        share.admit(1)  # what is sent is small
    shares[0].admit_strictly(80)
    for share in shares[1:]:
        with pytest.raises(Busy):
            share.admit_strictly(80)
    assert budget.used == 89
    with pytest.raises(LimitExceeded, match="--budget-bytes"):
        shares[1].admit_strictly(101)
