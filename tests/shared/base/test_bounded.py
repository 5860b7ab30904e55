from __future__ import annotations

import gc
import threading
import weakref

from jaxd_protocol.base.bounded import BoundedDict
from tests.server.staging import at_once


def filled(*names: str, limit: int = 2) -> BoundedDict[str, int]:
    """A mapping in which these were set in this order, each to its number."""
    table = BoundedDict[str, int](limit)
    for number, name in enumerate(names):
        table[name] = number
    return table


def test_the_entry_that_was_set_longest_ago_is_dropped() -> None:
    """Setting it again counts."""
    assert dict(filled("a", "b", "c")) == {"b": 1, "c": 2}
    assert dict(filled("a", "b", "a", "c")) == {"a": 2, "c": 3}
    assert dict(filled("a", limit=0)) == {}


def test_what_was_used_stays() -> None:
    """Reading is not using."""
    table = filled("a", "b")
    assert table.use("a") == 0
    assert (table.get("b"), table["b"], "b" in table) == (1, 1, True)
    table["c"] = 2
    assert list(table) == ["a", "c"]
    assert (table.use("b"), table.get("b")) == (None, None)
    assert list(table) == ["a", "c"]


def test_setdefault_and_update_keep_the_limit() -> None:
    """As all that sets entries."""
    table = filled("a", "b")
    assert table.setdefault("a", 7) == 0
    assert table.setdefault("c", 7) == 7
    assert list(table) == ["b", "c"]
    table.update({"d": 8, "e": 9})
    assert dict(table) == {"d": 8, "e": 9}


def test_who_sets_an_entry_has_the_one_that_was_dropped() -> None:
    """And nobody else: it is freed when they let go of it."""

    class Value:
        pass

    table = BoundedDict[str, Value](1)
    first = Value()
    assert table.put("a", first) is None
    assert table.put("a", first) is None
    alive = weakref.ref(first)
    del first
    dropped = table.put("b", Value())
    assert dropped is alive()
    assert dropped is not None
    del dropped
    gc.collect()
    assert alive() is None


def test_threads_that_set_entries_without_a_lock_lose_nothing_else() -> None:
    """Each entry has the value of its own key, and the limit holds."""
    table, barrier = BoundedDict[int, int](50), threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait(30)
        for number in range(first, first + 3000):
            table[number % 97] = number % 97
            table.use((number * 7) % 97)
            assert table.get(number % 13) in (None, number % 13)

    assert at_once(4, work) == [None] * 4
    assert 40 <= len(table) <= 50
    assert all(key == value for key, value in table.items())
    assert sorted(table) == sorted(set(table))
