from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from rpyc.core.channel import Channel
from rpyc.lib import Timeout

from jaxd_protocol.errors import LimitExceeded
from jaxd_protocol.wire import BulkChannel, BulkStream
from tests.shared.wire.by_hand import streams


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    with streams() as pair:
        yield pair


def test_a_message_arrives_with_its_buffers(pair: tuple[BulkStream, BulkStream]) -> None:
    """Between our own two ends."""
    ours, theirs = map(BulkChannel, pair)
    ours.send(b"body", [memoryview(b"one"), memoryview(bytearray(2))])
    frame = theirs.recv()
    assert frame == b"body"
    assert list(map(bytes, frame.buffers)) == [b"one", b"\0\0"]


@pytest.mark.parametrize("size", [0, 10, 2999, 3001, 100_000, 1_000_000])
@pytest.mark.parametrize("compress", [True, False])
def test_a_stock_channel_and_ours_understand_each_other(
    pair: tuple[BulkStream, BulkStream], size: int, compress: bool
) -> None:
    """rpyc compresses what is larger than 3,000 bytes."""
    ours = BulkChannel(pair[0], inflates=True)
    stock = Channel(pair[1], compress=compress)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for sender, receiver in ((stock, ours), (ours, stock)):
        sending = threading.Thread(target=sender.send, args=(body,))
        sending.start()
        assert receiver.recv() == body
        sending.join()


def test_waiting_for_a_message_knows_what_was_read_ahead(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """Nothing is left in the socket then."""
    ours, theirs = map(BulkChannel, pair)
    assert not theirs.poll(0)
    ours.send(b"one")
    ours.send(b"two")
    assert theirs.poll(None)
    assert theirs.recv() == b"one"
    assert theirs.poll(0)
    assert theirs.recv() == b"two"
    assert not theirs.poll(Timeout(0))


def test_the_limit_holds_both_ways(pair: tuple[BulkStream, BulkStream]) -> None:
    """And is each end's own."""
    ours, theirs = BulkChannel(pair[0], 1 << 20), BulkChannel(pair[1], 1 << 10)
    with pytest.raises(LimitExceeded):
        ours.send(b"", [memoryview(bytes(1 << 21))])
    ours.send(b"", [memoryview(bytes(1 << 11))])
    with pytest.raises(LimitExceeded):
        theirs.recv()


def test_an_arriving_message_asks_for_room(pair: tuple[BulkStream, BulkStream]) -> None:
    """Before its buffers are received."""
    asked: list[int] = []
    ours, theirs = BulkChannel(pair[0]), BulkChannel(pair[1], admit=asked.append)
    ours.send(b"body", [memoryview(b"123")])
    theirs.recv()
    assert asked == [7]


def test_a_closed_channel_is_at_its_end(pair: tuple[BulkStream, BulkStream]) -> None:
    """For both ends."""
    ours, theirs = map(BulkChannel, pair)
    ours.close()
    for channel in (ours, theirs):
        with pytest.raises(EOFError):
            channel.recv()
