from __future__ import annotations

from jaxd_server.runtime.threads.fairness import FairQueue


def test_each_owner_has_its_turn() -> None:
    """However much one has waiting; of each, the oldest comes first."""
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put("many", f"many {number}")
    queue.put("one", "one 0")
    queue.put("two", "two 0")
    assert (len(queue), queue.of("many"), queue.of("nobody")) == (5, 3, 0)
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
