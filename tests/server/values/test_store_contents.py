from __future__ import annotations

import gc
import sys
import weakref

from jaxd_protocol.pytree import Leaf
from jaxd_server.values.store import ContentStore
from jaxd_server.values.value import Value

LEAF = Leaf("A", "uint8", (40,))


class Array:
    """Stands for one."""


def value(nbytes: int = 40) -> Value:
    return Value(Array(), LEAF, nbytes, "sent")


def test_what_was_put_is_found_by_whose_it_is() -> None:
    """And by nobody else, whatever he knows of it."""
    contents, one = ContentStore(100), value()
    contents.put("uid:1", (1, 2), one)
    assert contents.find("uid:1", (1, 2)) is one
    assert contents.find("uid:2", (1, 2)) is None
    assert contents.find("uid:1", (2, 1)) is None


def test_the_least_recently_used_goes_first() -> None:
    """And its memory with it."""
    contents = ContentStore(100)
    for number in (1, 2):
        contents.put("uid:1", (number, 0), value())
    oldest = weakref.ref(contents._held["uid:1", (2, 0)].array)
    contents.find("uid:1", (1, 0))
    contents.put("uid:1", (3, 0), value())
    assert [contents.find("uid:1", (n, 0)) is not None for n in (1, 2, 3)] == [True, False, True]
    gc.collect()
    assert oldest() is None
    assert (len(contents), contents.nbytes) == (2, 80)


def test_what_is_larger_than_all_room_is_not_held() -> None:
    """Nothing goes for it; without any room nothing is held."""
    contents = ContentStore(100)
    contents.put("uid:1", (1, 0), value())
    contents.put("uid:1", (2, 0), value(101))
    assert contents.nbytes == 40
    nothing = ContentStore()
    nothing.put("uid:1", (1, 0), value(1))
    assert len(nothing) == 0


def test_what_comes_twice_counts_once() -> None:
    """It takes the place of the first."""
    contents, last = ContentStore(100), value()
    contents.put("uid:1", (1, 0), value())
    contents.put("uid:1", (1, 0), last)
    assert contents.nbytes == 40
    assert contents.find("uid:1", (1, 0)) is last


def test_it_can_be_emptied() -> None:
    """When the device has no room; it drops nothing by itself before."""
    contents = ContentStore(100)
    for number in range(2):
        contents.put("uid:1", (number, 0), value())
    assert contents.shrink() == 0
    assert contents.reclaim(1) == 1
    assert contents.find("uid:1", (1, 0)) is not None
    assert contents.reclaim(sys.maxsize) == 1
    assert (len(contents), contents.nbytes) == (0, 0)


def test_somebody_who_does_not_come_back_is_forgotten() -> None:
    """Whoever has the name next finds nothing; others keep theirs."""
    contents = ContentStore(100)
    for who in ("account:alice", "account:bob"):
        contents.put(who, (1, 2), value())
    contents.forget("account:alice")
    assert contents.find("account:alice", (1, 2)) is None
    assert contents.find("account:bob", (1, 2)) is not None
    assert contents.nbytes == 40
