"""Staying awake for the next message, as long as that pays."""

from __future__ import annotations

import threading
from itertools import pairwise

from jaxd_protocol.wire.patience import Patience


def never() -> bool:
    """Nothing comes."""
    return False


class Counting:
    """Says yes or no, and counts how often it was asked."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.answer


def test_it_returns_as_soon_as_a_message_is_there() -> None:
    """One question is enough."""
    ready = Counting(True)
    Patience(ready).wait()
    assert ready.asked == 1


def test_it_gives_up_when_nothing_comes() -> None:
    """The caller then sleeps, as it would have done at once."""
    Patience(never).wait()


def test_it_rests_after_vain_attempts_for_longer_and_longer() -> None:
    """A peer that takes its time costs next to nothing."""
    ready = Counting(False)
    patience = Patience(ready)
    asked = []
    for _ in range(600):
        before = ready.asked
        patience.wait()
        asked.append(ready.asked > before)
    awake = [i for i, was in enumerate(asked) if was]
    gaps = [b - a for a, b in pairwise(awake[2:])]
    assert awake[:3] == [0, 1, 2]
    assert gaps == sorted(gaps)
    assert len(awake) < 15


def test_one_success_makes_it_try_again_each_time() -> None:
    """The peer is quick again."""
    ready = Counting(False)
    patience = Patience(ready)
    for _ in range(3):
        patience.wait()
    ready.answer = True
    while patience._misses:
        patience.wait()
    before = ready.asked
    patience.wait()
    patience.wait()
    assert ready.asked == before + 2


def test_only_one_thread_of_a_process_stays_awake() -> None:
    """A second one does not even ask: the two would only take turns."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return leave.wait(10)

    first = threading.Thread(target=Patience(hold).wait)
    first.start()
    assert entered.wait(10)
    ready = Counting(True)
    Patience(ready).wait()
    leave.set()
    first.join()
    assert ready.asked == 0
