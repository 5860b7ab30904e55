from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jaxd_protocol.wire import BulkChannel, BulkStream
from jaxd_server.runtime.counters import Traffic


@pytest.fixture
def ends() -> Iterator[tuple[BulkChannel, BulkChannel]]:
    """Two channels that are connected with each other."""
    channels = [BulkChannel(BulkStream(sock)) for sock in socket.socketpair()]
    yield channels[0], channels[1]
    for channel in channels:
        channel.close()


def talk(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """1,000 bytes beside one message there, another one back."""
    ours, theirs = ends
    theirs.send(b"x", [memoryview(bytes(1_000))])
    ours.recv()
    ours.send(b"y")
    theirs.recv()


def test_bytes_of_open_connections_count(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """As soon as they were received or sent."""
    traffic = Traffic()
    traffic.add(ends[0])
    assert traffic.totals() == {"bytes_received": 0, "bytes_sent": 0}
    talk(ends)
    totals = traffic.totals()
    assert totals["bytes_received"] > 1_000 > totals["bytes_sent"] > 0


def test_bytes_of_closed_connections_still_count(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """The totals never go down."""
    traffic = Traffic()
    traffic.add(ends[0])
    talk(ends)
    before = traffic.totals()
    traffic.remove(ends[0])
    assert traffic.totals() == before


def test_what_one_end_sends_the_other_receives(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """All connections are added up."""
    traffic = Traffic()
    for channel in ends:
        traffic.add(channel)
    talk(ends)
    received = sum(channel.reader.bytes_received for channel in ends)
    assert traffic.totals()["bytes_received"] == received


def test_each_principal_has_its_own(ends: tuple[BulkChannel, BulkChannel]) -> None:
    """Open or closed."""
    traffic = Traffic()
    traffic.add(ends[0], "alice")
    traffic.add(ends[1], "bob")
    talk(ends)
    alices, bobs = traffic.totals("alice"), traffic.totals("bob")
    assert alices["bytes_received"] > 1_000 > alices["bytes_sent"] > 0
    assert bobs["bytes_sent"] > 1_000 > bobs["bytes_received"] > 0
    traffic.remove(ends[0])
    assert traffic.totals("alice") == alices
    assert traffic.totals("nobody") == {"bytes_received": 0, "bytes_sent": 0}


def test_whoever_gets_a_name_again_begins_at_nothing(
    ends: tuple[BulkChannel, BulkChannel],
) -> None:
    """The former holder's bytes, also those that are still on their way, count in the sum only."""
    traffic = Traffic()
    traffic.add(ends[0], "alice")
    talk(ends)
    traffic.remove(ends[0])
    traffic.add(ends[1], "alice")
    sums = traffic.totals()
    traffic.forget("alice")
    assert traffic.totals("alice") == {"bytes_received": 0, "bytes_sent": 0}
    assert traffic.totals() == sums
    talk(ends)
    traffic.remove(ends[1])
    assert traffic.totals("alice") == {"bytes_received": 0, "bytes_sent": 0}
    assert traffic.totals()["bytes_sent"] > sums["bytes_sent"]
