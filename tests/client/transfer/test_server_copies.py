from __future__ import annotations

import pytest

from jaxd.transfer.release_queue import ReleaseQueue
from jaxd.transfer.server_copies import ServerCopies, ServerCopy
from tests.spans import ids_in


class Bench:
    """Copies of at most 100 bytes, and what the server is told of them."""

    def __init__(self) -> None:
        self.drops = ReleaseQueue(lambda _: True)
        self.copies = ServerCopies(self.drops, 100)

    def begin(self, nbytes: int) -> ServerCopy:
        copy = self.copies.reserve(nbytes)
        assert copy is not None
        return copy

    def there(self, nbytes: int) -> ServerCopy:
        """One that a call has brought."""
        copy = self.begin(nbytes)
        self.copies.complete([copy], ready=True)
        return copy

    def dropped(self) -> tuple[int, ...]:
        return ids_in(self.drops.take_all())


def test_a_call_that_fails_does_not_change_what_it_referred_to() -> None:
    """It was there before, and still is."""
    bench = Bench()
    copy = bench.there(40)
    assert bench.copies.acquire(copy)
    bench.copies.complete([copy], ready=False)
    assert bench.copies.acquire(copy)


def test_the_least_recently_used_copy_makes_room() -> None:
    """The server is told; what a call refers to at the moment stays."""
    bench = Bench()
    first, second, third = (bench.there(30) for _ in range(3))
    assert bench.copies.acquire(first)
    bench.copies.complete([first], ready=True)
    assert bench.copies.acquire(second)
    bench.there(30)
    assert bench.dropped() == (third.id,)
    bench.there(30)
    assert bench.dropped() == (first.id,)
    assert second.is_on_server


@pytest.mark.parametrize("nbytes", [101, 41])
def test_what_has_no_room_is_no_copy(nbytes: int) -> None:
    """Neither what is too large, nor what would displace copies that are in use."""
    bench = Bench()
    bench.begin(60)
    assert bench.copies.reserve(nbytes) is None


def test_what_is_forgotten_goes_without_waiting() -> None:
    """Its room is free for the next one."""
    bench = Bench()
    copy = bench.there(60)
    with bench.copies._lock:  # as when a collection begins in the middle of anything
        bench.copies.forget(copy)
    assert bench.dropped() == (copy.id,)
    bench.begin(100)


def test_what_arrives_after_its_call_was_given_up_is_dropped_once_more() -> None:
    """The first time, the server may not have had it."""
    bench = Bench()
    copy = bench.begin(40)
    bench.copies.complete([copy], ready=False)
    assert bench.dropped() == (copy.id,)
    there = bench.there(40)
    bench.copies.release_unconfirmed([copy, there])
    assert bench.dropped() == (copy.id,)
