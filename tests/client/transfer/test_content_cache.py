from __future__ import annotations

from collections.abc import Mapping

import pytest

from jaxd.transfer.content_cache import MIN_HASHED_BYTES, ContentCache
from jaxd.transfer.link_speed import FAST_LINK, DedupPolicy
from jaxd.transfer.release_queue import ReleaseQueue
from jaxd.transfer.server_copies import ServerCopies, ServerCopy
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.data_locations import (
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
    content_id,
    unpack_ids,
)

SPEC = b"what the skeleton says"


def data_of(number: int, size: int = MIN_HASHED_BYTES) -> memoryview:
    """No two of them alike."""
    return memoryview(bytes([number]) * size)


class Bench:
    """A session, and a server that has some contents."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.copies = ServerCopies(ReleaseQueue(lambda _: True), limit)
        self.worth = DedupPolicy()
        self.contents = ContentCache(self.copies, self.worth)
        self.there: set[tuple[int, ...]] = set()
        self.asked: list[int] = []

    def ask(self, contents: bytes, ids: bytes) -> bytes:
        numbers = unpack_ids(contents)
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        assert len(pairs) == len(unpack_ids(ids))
        self.asked.append(len(pairs))
        return bytes(pair in self.there for pair in pairs)

    def rows(self, data: Mapping[int, memoryview]) -> list[tuple[DataLocation, ServerCopy | None]]:
        """How it travels with a call that is over when this returns."""
        found = self.contents.locate(data, dict.fromkeys(data, SPEC), self.ask)
        self.copies.complete([copy for _, copy in found if copy is not None], ready=True)
        self.there.update((row.a, row.b) for row, _ in found if row.kind == CACHED_BY_CONTENT)
        return found

    def kinds(self, *numbers: int) -> list[int]:
        found = self.rows(dict(enumerate(map(data_of, numbers))))
        return [row.kind for row, _ in found]


def test_what_the_server_does_not_have_is_stored_under_its_hash() -> None:
    """Of its data and of what the skeleton says of it."""
    bench = Bench()
    ((row, copy),) = bench.rows({3: data_of(1)})
    assert row == DataLocation(3, CACHED_BY_CONTENT, *content_id(SPEC, data_of(1)))
    assert copy is None


def test_what_the_server_has_is_not_sent() -> None:
    """It is asked the first time, and not again."""
    bench = Bench()
    assert bench.kinds(1, 2) == [CACHED_BY_CONTENT, CACHED_BY_CONTENT]
    assert bench.kinds(2, 3) == [VALUE, CACHED_BY_CONTENT]
    assert bench.kinds(2, 2) == [VALUE, VALUE]
    assert bench.asked == [2, 2]


def test_small_arrays_are_not_looked_at() -> None:
    """They are sent in the time that asking takes."""
    bench = Bench()
    assert bench.rows({0: data_of(1, MIN_HASHED_BYTES - 1)}) == []
    assert bench.asked == []


def test_over_a_fast_link_nothing_is_looked_at() -> None:
    """It is sent as quickly."""
    bench = Bench()
    bench.worth.record_transfer(1 << 30, (1 << 30) / FAST_LINK)
    assert bench.rows({0: data_of(1)}) == []


def test_arrays_that_are_always_new_are_left_alone() -> None:
    """After some of them."""
    bench = Bench()
    kinds = [bench.kinds(number) for number in range(12)]
    assert kinds == [[CACHED_BY_CONTENT]] * 8 + [[]] * 4


def test_what_had_to_make_room_is_asked_for_again() -> None:
    """The server may still hold it."""
    bench = Bench(MIN_HASHED_BYTES)
    bench.kinds(1)
    bench.kinds(2)
    assert [bench.kinds(number) for number in (1, 2, 1)] == [[VALUE]] * 3
    assert bench.asked == [1] * 5


def test_a_connection_that_ends_leaves_nothing_half_known() -> None:
    """The next call asks again."""
    bench = Bench()
    bench.kinds(1)

    def fail(*_: bytes) -> bytes:
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost):
        bench.contents.locate({0: data_of(1)}, {0: SPEC}, fail)
    assert not bench.copies._copies
    assert bench.kinds(1) == [VALUE]
