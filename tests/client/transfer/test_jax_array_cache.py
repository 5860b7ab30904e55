from __future__ import annotations

import gc
from typing import Any

import jax.numpy as jnp
import pytest

from jaxd.transfer.dedup import MIN_CACHED_BYTES, JaxArrayCache
from jaxd.transfer.release_queue import ReleaseQueue
from jaxd.transfer.server_copies import ServerCopies
from jaxd_protocol.messages.data_locations import CACHED_AS_VALUE, VALUE, DataLocation
from tests.spans import ids_in

LARGE = MIN_CACHED_BYTES // 4


class Bench:
    """What one session has sent."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.drops = ReleaseQueue(lambda _: True)
        self.copies = ServerCopies(self.drops, limit)
        self.seen = JaxArrayCache(self.copies)

    def send(self, array: Any, *, ready: bool = True, refused: bool = False) -> DataLocation | None:
        """How the array travels with a call that is over when this returns."""
        found = self.seen.find_copy(3, array) or self.seen.offer_copy(3, array)
        if found is None:
            return None
        row, copy = found
        self.copies.complete([copy], ready=ready, refused=[copy.id] if refused else [])
        return row

    def kinds(self, array: Any, count: int) -> list[int | None]:
        rows = [self.send(array) for _ in range(count)]
        return [None if row is None else row.kind for row in rows]


def test_an_array_is_kept_the_second_time_and_not_sent_from_then_on() -> None:
    """Under one id, as the leaf that it is."""
    bench, array = Bench(), jnp.zeros(LARGE)
    assert bench.send(array) is None
    kept, *later = [bench.send(array) for _ in range(3)]
    assert kept is not None
    assert (kept.leaf, kept.kind) == (3, CACHED_AS_VALUE)
    assert later == [DataLocation(3, VALUE, kept.a)] * 2


def test_small_arrays_are_sent() -> None:
    """To look them up would take as long."""
    assert Bench().kinds(jnp.zeros(LARGE - 1), 3) == [None] * 3


def test_equal_arrays_are_not_the_same() -> None:
    """Each is known by itself."""
    bench, one, other = Bench(), jnp.zeros(LARGE), jnp.zeros(LARGE)
    assert bench.kinds(one, 2) == [None, CACHED_AS_VALUE]
    assert bench.kinds(other, 2) == [None, CACHED_AS_VALUE]


def test_while_an_array_is_on_its_way_others_send_it() -> None:
    """Nobody can refer to what may not be there."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send(array)
    assert bench.seen.offer_copy(0, array) is not None
    assert bench.seen.offer_copy(1, array) is None
    assert bench.seen.find_copy(1, array) is None


def test_a_call_that_failed_is_made_good_by_the_next() -> None:
    """Which brings the array once more, under another id."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send(array)
    first, second = bench.send(array, ready=False), bench.send(array)
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (CACHED_AS_VALUE, CACHED_AS_VALUE)
    assert first.a != second.a
    assert bench.kinds(array, 1) == [VALUE]


def test_what_the_server_refuses_is_not_offered_again() -> None:
    """It is sent with each call."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send(array)
    bench.send(array, refused=True)
    assert bench.kinds(array, 2) == [None, None]


def test_what_had_to_make_room_is_kept_again() -> None:
    """When it is sent the next time."""
    bench = Bench(MIN_CACHED_BYTES)
    one, other = jnp.zeros(LARGE), jnp.ones(LARGE)
    assert bench.kinds(one, 3) == [None, CACHED_AS_VALUE, VALUE]
    assert bench.kinds(other, 2) == [None, CACHED_AS_VALUE]
    assert bench.kinds(one, 2) == [CACHED_AS_VALUE, VALUE]


@pytest.mark.parametrize("times", [1, 2])
def test_a_collected_array_is_forgotten(times: int) -> None:
    """And the server lets go of its copy, if it has one."""
    bench, array = Bench(), jnp.zeros(LARGE)
    ids = [row.a for row in (bench.send(array) for _ in range(times)) if row is not None]
    assert len(bench.seen._refs) == 1
    del array
    gc.collect()
    assert len(bench.seen._refs) == 0
    assert list(ids_in(bench.drops.take_all())) == ids


class Reused:
    """An array in the place of another one."""

    nbytes = MIN_CACHED_BYTES


def test_another_array_at_the_same_place_is_another_array() -> None:
    """`id` is used again, also before anybody has heard that the first one is gone."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.kinds(array, 2)
    (seen,) = bench.seen._refs.values()
    other = Reused()
    bench.seen._refs = {id(other): seen}
    assert bench.kinds(other, 2) == [None, CACHED_AS_VALUE]
    del array
    gc.collect()
    assert bench.kinds(other, 1) == [VALUE]


@pytest.mark.parametrize("times", [0, 1])
def test_a_copy_that_came_another_way_stands_for_an_array_too(times: int) -> None:
    """It stays when the array goes: others may stand for it."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.kinds(array, times)
    copy = bench.copies.reserve(LARGE * 4)
    assert copy is not None
    bench.copies.complete([copy], ready=True)
    copy.is_shared = True
    bench.seen.link_copy(array, copy)
    assert bench.send(array) == DataLocation(3, VALUE, copy.id)
    del array
    gc.collect()
    assert copy.is_on_server
    assert bench.drops.take_all() == b""
