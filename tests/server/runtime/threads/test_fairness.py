from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxd_server.runtime.threads.fairness import FairQueue, FairSemaphore
from tests.server.staging import join, start, until


def test_each_owner_has_its_turn() -> None:
    """However much one has waiting; of each, the oldest comes first."""
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put("many", f"many {number}")
    queue.put("one", "one 0")
    queue.put("two", "two 0")
    assert len(queue) == 5
    taken = [queue.get() for _ in range(6)]
    assert taken == ["many 0", "one 0", "two 0", "many 1", "many 2", None]


def test_what_is_not_wanted_any_more_is_taken_out() -> None:
    """Wherever it stands; and its owner's turn with it, when it was the last."""
    queue: FairQueue[str] = FairQueue()
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
        with fair_semaphore:
            inside.append(1)
            go.acquire()
            inside.pop()

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
