"""Data that a call need not send: arrays of jax that were sent before, and known contents."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from jaxd.transfer import dedup
from jaxd.transfer.content_cache import MIN_HASHED_BYTES
from jaxd.transfer.dedup import MIN_CACHED_BYTES, Deduplicator
from jaxd.transfer.release_queue import ReleaseQueue
from jaxd.transfer.server_copies import ServerCopies
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.data_locations import (
    CACHED_AS_VALUE,
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
    content_id,
    unpack_ids,
)
from jaxd_protocol.network.addresses import Address
from tests.spans import ids_in

NEAR, FAR = Address.unix("/run/jaxd.sock"), Address.tcp("10.0.0.1")
LARGE = MIN_CACHED_BYTES // 4
SPEC = b"what the skeleton says"


class Call(NamedTuple):
    """The data of one."""

    sources: Mapping[int, Any] = {}
    buffers: Sequence[memoryview] = ()
    buffer_leaves: Sequence[int] = ()
    leaf_headers: Mapping[int, bytes] = {}
    data_locations: Sequence[DataLocation] = ()


def data_of(number: int, size: int = MIN_HASHED_BYTES) -> memoryview:
    """No two of them alike."""
    return memoryview(bytes([number]) * size)


class Bench:
    """What one session has sent, and a server that has some contents."""

    def __init__(self, where: Address = NEAR) -> None:
        self.drops = ReleaseQueue(lambda _: True)
        self.sent = Deduplicator(self.drops, where)
        self.there: set[tuple[int, ...]] = set()
        self.asked: list[int] = []
        self.error: Exception | None = None

    def ask(self, contents: bytes, ids: bytes) -> bytes:
        numbers = unpack_ids(contents)
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        assert len(pairs) == len(unpack_ids(ids))
        self.asked.append(len(pairs))
        if self.error is not None:
            raise self.error
        return bytes(pair in self.there for pair in pairs)

    def send(
        self,
        sources: Mapping[int, Any] | None = None,
        data: Mapping[int, memoryview] | None = None,
        *,
        ready: bool = True,
        refused: bool = False,
        sent: int = 0,
    ) -> list[DataLocation]:
        """How it travels with a call that is over when this returns, beside something unnamed."""
        data = {-1: memoryview(bytes(9)), **(data or {})}
        call = Call(sources or {}, [*data.values()], [*data], dict.fromkeys(data, SPEC))
        plan = self.sent.plan(call, self.ask)
        rows = list(plan.data_locations)
        plan.complete(ready=ready, refused=[row.a for row in rows] if refused else (), sent=sent)
        self.there.update((row.a, row.b) for row in rows if row.kind == CACHED_BY_CONTENT)
        return rows

    def kinds(self, *arrays: Any, **more: Any) -> list[tuple[int, int]]:
        """Leaves and kinds of what of these arrays of jax is not simply sent."""
        return [(row.leaf, row.kind) for row in self.send(dict(enumerate(arrays)), **more)]

    def contents(self, *numbers: int) -> list[int]:
        """The kinds of arrays of numpy with these contents."""
        return [row.kind for row in self.send(None, dict(enumerate(map(data_of, numbers))))]


# arrays of jax ------------------------------------------------------------------------------------


def test_an_array_is_kept_the_second_time_and_not_sent_from_then_on() -> None:
    """Under one id, as the leaf that it is; each is known by itself, equal ones as well."""
    bench, array, other = Bench(), jnp.zeros(LARGE), jnp.zeros(LARGE)
    assert bench.send({3: array}) == []
    (kept,) = bench.send({3: array, 4: other})
    assert (kept.leaf, kept.kind) == (3, CACHED_AS_VALUE)
    rows = bench.send({3: array, 4: other})
    assert [(row.leaf, row.kind) for row in rows] == [(3, VALUE), (4, CACHED_AS_VALUE)]
    assert bench.send({3: array}) == [DataLocation(3, VALUE, kept.a)]


def test_small_arrays_are_sent() -> None:
    """To look them up would take as long."""
    bench, array = Bench(), jnp.zeros(LARGE - 1)
    assert [bench.kinds(array) for _ in range(3)] == [[]] * 3


def test_while_an_array_is_on_its_way_others_send_it() -> None:
    """Nobody can refer to what may not be there."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send({0: array})
    plan = bench.sent.plan(Call({0: array}), bench.ask)
    assert [row.kind for row in plan.data_locations] == [CACHED_AS_VALUE]
    assert bench.send({1: array}) == []
    plan.complete(ready=True)
    assert bench.kinds(array) == [(0, VALUE)]


def test_a_call_that_failed_is_made_good_by_the_next() -> None:
    """Which brings the array once more, under another id."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send({0: array})
    (first,), (second,) = bench.send({0: array}, ready=False), bench.send({0: array})
    assert (first.kind, second.kind) == (CACHED_AS_VALUE, CACHED_AS_VALUE)
    assert first.a != second.a
    assert bench.kinds(array) == [(0, VALUE)]


def test_what_the_server_refuses_is_not_offered_again() -> None:
    """It is sent with each call."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.send({0: array})
    bench.send({0: array}, refused=True)
    assert [bench.kinds(array) for _ in range(2)] == [[], []]


def test_what_had_to_make_room_is_kept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is sent the next time."""
    few = partial(ServerCopies, limit_bytes=MIN_CACHED_BYTES)
    monkeypatch.setattr(dedup, "ServerCopies", few)
    bench, one, other = Bench(), jnp.zeros(LARGE), jnp.ones(LARGE)
    found = [bench.kinds(array) for array in (one, one, one, other, other, one, one)]
    kinds = [None, CACHED_AS_VALUE, VALUE, None, CACHED_AS_VALUE, CACHED_AS_VALUE, VALUE]
    assert found == [[] if kind is None else [(0, kind)] for kind in kinds]


@pytest.mark.parametrize("times", [1, 2])
def test_a_collected_array_is_forgotten(times: int) -> None:
    """And the server lets go of its copy, if it has one."""
    bench, array = Bench(), jnp.zeros(LARGE)
    ids = [row.a for _ in range(times) for row in bench.send({0: array})]
    del array
    gc.collect()
    assert list(ids_in(bench.drops.take_all())) == ids


class Reused:
    """An array in the place of another one."""

    nbytes = MIN_CACHED_BYTES


def test_another_array_at_the_same_place_is_another_array() -> None:
    """`id` is used again, also before anybody has heard that the first one is gone."""
    bench, array = Bench(), jnp.zeros(LARGE)
    bench.kinds(array), bench.kinds(array)
    seen = bench.sent._jax_arrays
    (first,) = seen._refs.values()
    other = Reused()
    seen._refs = {id(other): first}
    assert [bench.kinds(other) for _ in range(2)] == [[], [(0, CACHED_AS_VALUE)]]
    del array
    gc.collect()
    assert bench.kinds(other) == [(0, VALUE)]


# contents -----------------------------------------------------------------------------------------


def test_what_the_server_does_not_have_is_stored_under_its_hash() -> None:
    """Of its data and of what the skeleton says of it; beside the server nothing is."""
    expected = DataLocation(3, CACHED_BY_CONTENT, *content_id(SPEC, data_of(1)))
    assert Bench(FAR).send(None, {3: data_of(1)}) == [expected]
    assert Bench(NEAR).send(None, {3: data_of(1)}) == []


def test_what_the_server_has_is_not_sent() -> None:
    """It is asked the first time, and not again."""
    bench = Bench(FAR)
    assert bench.contents(1, 2) == [CACHED_BY_CONTENT, CACHED_BY_CONTENT]
    assert bench.contents(2, 3) == [VALUE, CACHED_BY_CONTENT]
    assert bench.contents(2, 2) == [VALUE, VALUE]
    assert bench.asked == [2, 2]


def test_small_arrays_are_not_looked_at() -> None:
    """They are sent in the time that asking takes."""
    bench = Bench(FAR)
    assert bench.send(None, {0: data_of(1, MIN_HASHED_BYTES - 1)}) == []
    assert bench.asked == []


def test_what_had_to_make_room_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may still hold it."""
    few = partial(ServerCopies, limit_bytes=MIN_HASHED_BYTES)
    monkeypatch.setattr(dedup, "ServerCopies", few)
    bench = Bench(FAR)
    bench.contents(1), bench.contents(2)
    assert [bench.contents(number) for number in (1, 2, 1)] == [[VALUE]] * 3
    assert bench.asked == [1] * 5


def test_a_content_stands_for_the_array_of_jax_that_has_it() -> None:
    """It stays when the array goes: others may have it too."""
    bench, array = Bench(FAR), jnp.zeros(LARGE)
    found = [bench.kinds(array, data={0: data_of(1)}) for _ in range(3)]
    assert found == [[(0, kind)] for kind in (CACHED_BY_CONTENT, VALUE, VALUE)]
    assert bench.kinds(array) == [(0, VALUE)]
    bench.drops.take_all()
    del array
    gc.collect()
    assert bench.drops.take_all() == b""
    assert bench.contents(1) == [VALUE]


def test_a_server_that_is_gone_is_no_news() -> None:
    """The caller hears it, and everything is as it was before."""
    bench = Bench(FAR)
    bench.contents(1)
    bench.error = ConnectionLost("gone")
    with pytest.raises(ConnectionLost):
        bench.contents(1)
    bench.error = None
    assert bench.contents(1) == [VALUE]


def test_a_fast_link_is_noticed() -> None:
    """By calls that send much and are over at once."""
    bench = Bench(FAR)
    for number in range(4):
        bench.send(None, {2: data_of(number)}, sent=1 << 40)
    assert bench.contents(9) == []
