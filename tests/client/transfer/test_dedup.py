from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from jaxd.transfer.dedup import Deduplicator
from jaxd.transfer.release_queue import ReleaseQueue
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.data_locations import (
    CACHED_AS_VALUE,
    CACHED_BY_CONTENT,
    VALUE,
    DataLocation,
)
from jaxd_protocol.network.addresses import Address

NEAR, FAR = Address.unix("/run/jaxd.sock"), Address.tcp("10.0.0.1")


class Call(NamedTuple):
    """The data of one."""

    sources: Mapping[int, Any] = {}
    buffers: Sequence[memoryview] = ()
    buffer_leaves: Sequence[int] = ()
    leaf_headers: Mapping[int, bytes] = {}
    data_locations: Sequence[DataLocation] = ()


class Server:
    """Has what it is asked for, or is gone."""

    def __init__(self, has: bool = True, error: Exception | None = None) -> None:
        self.has, self.error = has, error

    def ask(self, wanted: bytes, ids: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return bytes([self.has]) * (len(ids) // 8)


class Bench:
    """One session."""

    def __init__(self, where: Address = NEAR) -> None:
        self.sent = Deduplicator(ReleaseQueue(lambda _: True), where)

    def kinds(
        self, call: Call, server: Server | None = None, *, ready: bool = True
    ) -> list[tuple[int, int]]:
        """Leaves and kinds of what a call need not send, which is over when this returns."""
        spared = self.sent.plan(call, (server or Server()).ask)
        spared.complete(ready=ready)
        return [(row.leaf, row.kind) for row in spared.data_locations]


def bytes_of(size: int) -> Call:
    """A call with one array of numpy's, and something that is no array."""
    return Call({}, [memoryview(bytes(9)), memoryview(bytes(size))], [-1, 2], {2: b"spec"})


def test_a_call_is_spared_what_was_sent_before() -> None:
    """Leaf by leaf; what it brings is there once it is settled."""
    bench, one, two = Bench(), jnp.zeros(1 << 15), jnp.ones(1 << 15)
    assert bench.kinds(Call({1: one})) == []
    assert bench.kinds(Call({1: one, 4: two})) == [(1, CACHED_AS_VALUE)]
    assert bench.kinds(Call({0: one, 4: two})) == [(0, VALUE), (4, CACHED_AS_VALUE)]


def test_nothing_is_there_after_a_call_that_failed() -> None:
    """The next one brings it again."""
    bench, call = Bench(), Call({0: jnp.zeros(1 << 15)})
    bench.kinds(call)
    assert bench.kinds(call, ready=False) == [(0, CACHED_AS_VALUE)]
    assert bench.kinds(call) == [(0, CACHED_AS_VALUE)]
    assert bench.kinds(call) == [(0, VALUE)]


def test_over_a_network_arrays_are_told_by_their_content() -> None:
    """Beside the server they are not."""
    call = bytes_of(1 << 20)
    assert Bench(FAR).kinds(call, Server(has=True)) == [(2, VALUE)]
    assert Bench(FAR).kinds(call, Server(has=False)) == [(2, CACHED_BY_CONTENT)]
    assert Bench(NEAR).kinds(call) == []


def test_a_server_that_is_gone_is_no_news() -> None:
    """The caller hears it, and everything is as it was before."""
    bench = Bench(FAR)
    with pytest.raises(ConnectionLost):
        bench.kinds(bytes_of(1 << 20), Server(error=ConnectionLost("gone")))
    assert bench.kinds(bytes_of(1 << 20), Server(has=True)) == [(2, VALUE)]


def test_a_fast_link_is_noticed() -> None:
    """By calls that send much and are over at once."""
    bench, call = Bench(FAR), bytes_of(1 << 20)
    for _ in range(4):
        spared = bench.sent.plan(call, Server(has=False).ask)
        spared.complete(ready=True, sent=1 << 40)
    assert bench.kinds(call) == []
