"""Staying awake for the next message, as long as that pays."""

from __future__ import annotations

import threading
from itertools import pairwise

from jaxd_protocol.wire.stream import AdaptiveWait


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
    AdaptiveWait(ready).wait()
    assert ready.asked == 1


def test_it_gives_up_when_nothing_comes() -> None:
    """The caller then sleeps, as it would have done at once."""
    AdaptiveWait(never).wait()


def awake(adaptive_wait: AdaptiveWait, ready: Counting, messages: int) -> list[int]:
    """For which of so many messages it stays awake."""
    found = []
    for number in range(messages):
        before = ready.asked
        adaptive_wait.wait()
        if ready.asked > before:
            found.append(number)
    return found


def test_it_rests_after_vain_attempts_for_longer_and_longer() -> None:
    """A peer that takes its time costs little."""
    ready = Counting(False)
    found = awake(AdaptiveWait(ready), ready, 400)
    rests = [b - a - 1 for a, b in pairwise(found) if b - a > 1]
    assert found[:4] == [0, 1, 2, 11]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (8, 32)
    assert len(found) < 60


def test_two_ends_that_rest_find_each_other_again() -> None:
    """An attempt only pays when the other end is awake as well, and their rests differ."""
    one, other = Counting(False), Counting(False)
    ends = AdaptiveWait(one), AdaptiveWait(other)
    awake(ends[0], one, 37)  # it has rested before the other has
    messages = 0
    while messages < 1000:
        messages += 1
        asked = one.asked, other.asked
        both = ends[0]._rest == ends[1]._rest == 0
        one.answer = other.answer = both
        for end in ends:
            end.wait()
        if both and one.asked > asked[0] and other.asked > asked[1]:
            break
    assert messages < 200


def test_one_success_makes_it_try_again_each_time() -> None:
    """The peer is quick again."""
    ready = Counting(False)
    adaptive_wait = AdaptiveWait(ready)
    awake(adaptive_wait, ready, 60)
    ready.answer = True
    while not awake(adaptive_wait, ready, 1):
        pass
    assert awake(adaptive_wait, ready, 50) == list(range(50))
    ready.answer = False
    assert len(awake(adaptive_wait, ready, 3)) == 3
    assert adaptive_wait._rest == 8


def test_only_one_thread_of_a_process_stays_awake() -> None:
    """A second one does not even ask: the two would only take turns."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return leave.wait(10)

    first = threading.Thread(target=AdaptiveWait(hold).wait)
    first.start()
    assert entered.wait(10)
    ready = Counting(True)
    AdaptiveWait(ready).wait()
    leave.set()
    first.join()
    assert ready.asked == 0
