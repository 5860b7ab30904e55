"""Values that nobody here holds any more."""

from __future__ import annotations

import gc
import threading
from typing import Any

from jaxd.transfer.release_queue import ReleaseQueue
from jaxd_protocol.messages.data_locations import unpack_spans, value_ids_of
from tests.server.staging import until
from tests.spans import ids_in, packed_ids


class SentReleases:
    """Notes what the server was told; is of use as often as the test says."""

    def __init__(self, useful: bool = True) -> None:
        self.messages: list[tuple[int, ...]] = []
        self.useful = useful

    def __call__(self, ids: bytes) -> bool:
        self.messages.append(ids_in(ids))
        return self.useful


def test_a_call_takes_along_what_is_gone() -> None:
    """Each once, in order."""
    drops = ReleaseQueue(SentReleases())
    assert drops.take_all() == b""
    drops.add(range(3, 4))
    drops.add(range(1, 2))
    assert ids_in(drops.take_all()) == (3, 1)
    assert drops.take_all() == b""


def test_the_values_of_two_calls_are_told_apart() -> None:
    """Though all ids of one end where those of the next begin."""
    drops = ReleaseQueue(SentReleases())
    calls = [value_ids_of(number) for number in (4, 5)]
    for ids in calls:
        drops.add(ids)
    assert unpack_spans(drops.take_all()) == calls


def test_what_no_call_takes_along_is_told_in_few_messages() -> None:
    """Hundreds of them are one."""
    told = SentReleases()
    drops = ReleaseQueue(told)
    drops.start()
    for i in range(300):
        drops.add(range(i, i + 1))
    until(lambda: sum(map(len, told.messages)) == 300)
    assert len(told.messages) <= 3
    drops.add(range(300, 301))
    until(lambda: told.messages[-1] == (300,))


def test_what_could_not_be_told_goes_with_the_next_call() -> None:
    """Nothing is lost with a connection."""
    drops = ReleaseQueue(SentReleases())
    drops.add(range(2, 3))
    drops.requeue(packed_ids([1]))
    assert ids_in(drops.take_all()) == (2, 1)


def test_what_could_not_be_told_is_told_without_a_call() -> None:
    """But not again and again while nobody can be told."""
    told = SentReleases()
    drops = ReleaseQueue(told)
    drops.start()
    drops.requeue(packed_ids([1]))
    until(lambda: told.messages == [(1,)])
    drops.add(range(2, 3))

    def keep(ids: bytes) -> bool:
        drops.requeue(ids)
        return True

    drops._send = keep  # as without a connection
    until(lambda: bool(drops.pending) and not drops._is_woken)
    drops._send = told
    drops.add(range(3, 4))
    until(lambda: sorted(sum(told.messages, ())) == [1, 2, 3])


def test_the_thread_ends_with_the_connection_and_another_goes_on() -> None:
    """What went meanwhile is told by that one, and nothing before."""
    told = SentReleases()
    drops = ReleaseQueue(told)
    drops.resend()
    assert not drops._is_needed  # there has been nothing to tell
    drops.start()
    first = drops._thread
    drops.stop()
    drops.stop()
    assert first is not None
    first.join(10)
    assert not first.is_alive()
    drops.start()  # of a call that was still under way
    assert drops._thread is None
    drops.add(range(1, 2))
    drops.resend()
    until(lambda: told.messages == [(1,)])
    drops.add(range(2, 3))
    until(lambda: told.messages == [(1,), (2,)])


def test_the_child_of_a_fork_tells_nothing() -> None:
    """The values are its parent's."""
    drops = ReleaseQueue(SentReleases())
    drops.add(range(1, 2))
    drops.abandon()
    drops.add(range(2, 3))
    assert drops.take_all() == b""


class SelfReleasing:
    """Lets go of itself in a garbage collection, as arrays do."""

    def __init__(self, drops: ReleaseQueue, number: int) -> None:
        self.itself: Any = self
        self._drops, self._number = drops, number

    def __del__(self) -> None:
        self._drops.add(range(self._number, self._number + 1))


def test_a_garbage_collection_waits_for_nobody() -> None:
    """Whatever this very thread was doing, and whatever locks it holds."""
    told = SentReleases()
    drops = ReleaseQueue(told)
    drops.start()
    lock = threading.Lock()
    for i in range(50):
        SelfReleasing(drops, i)
    with lock:
        gc.collect()
        drops.take_all()
        gc.collect()
    drops.add(range(50, 51))
    until(lambda: told.messages[-1:] == [(50,)])
