from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from jaxd_protocol.errors import InternalError
from jaxd_protocol.wire import BulkChannel, BulkStream, stream_over
from jaxd_protocol.wire.frames import FrameReader, FrameWriter
from jaxd_protocol.wire.tls_socket import TlsSocket, TlsStream
from tests.certificates import tls_pair, tls_streams
from tests.shared.wire.by_hand import Sent
from tests.shared.wire.interrupt import endlessly, swallowed_interrupt
from tests.shared.wire.test_frame_reader import MIXED, received
from tests.shared.wire.test_frame_writer import INTERRUPTED, LIMIT, write

Pair = tuple[BulkStream, BulkStream]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = tls_streams(socket.socketpair())
    yield ends
    for end in ends:
        end.close()


def send_all(channel: BulkChannel, frames: list[Sent]) -> None:
    for body, buffers in frames:
        channel.send(body, [memoryview(buffer) for buffer in buffers])


def test_frames_go_both_ways(pair: Pair) -> None:
    """All that a plain stream carries but open files, also more than any socket holds."""
    frames = [(body, buffers) for body, buffers, _ in MIXED.values()]
    frames.append((b"large", (bytes(range(256)) * 8000, b"", b"1", b"z" * 100_000)))
    for end in pair:
        assert type(end) is TlsStream
        assert not end.passes_descriptors
        end.expect_descriptors()
    channels = [BulkChannel(end) for end in pair]
    for one, other in (channels, channels[::-1]):
        sender = threading.Thread(target=send_all, args=(one, frames))
        sender.start()
        assert [received(other.recv()) for _ in frames] == frames
        sender.join()


def test_open_files_do_not_travel(pair: Pair) -> None:
    """Nothing of the message is sent then."""
    one, other = map(BulkChannel, pair)
    with pytest.raises(InternalError, match="open files"):
        one.send(b"with a file", (), (0,))
    one.send(b"without")
    assert received(other.recv()) == (b"without", ())


def test_an_interrupted_message_goes_out_although_nobody_writes_again(pair: Pair) -> None:
    """What was encrypted is part of it already."""
    outgoing, incoming = pair
    writer = FrameWriter(outgoing.send_some, LIMIT, outgoing.flush)
    tls: TlsSocket = outgoing._tls
    tls.raw = InterruptedOnce(tls.raw)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        write(writer, INTERRUPTED)
    assert received(FrameReader(incoming.receive_into, LIMIT).peek()) == INTERRUPTED


class InterruptedOnce:
    """A socket whose first system call is interrupted."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._calls = count()

    def send(self, data: memoryview) -> int:
        if next(self._calls) == 0:
            raise KeyboardInterrupt
        return self._sock.send(data)


def test_waiting_knows_of_bytes_that_have_left_the_socket(pair: Pair) -> None:
    """The socket itself shows nothing any more."""
    one, other = pair
    is_ready = other.readiness()
    assert not is_ready()
    assert not other.wait_readable(0)
    one.send_some([memoryview(b"abc")], [])
    assert other.wait_readable(None)
    data = bytearray(1)
    other.receive_into([memoryview(data)], [])
    assert is_ready()
    assert other.wait_readable(0)
    one.close()
    assert not other.has_ended()  # there is something left to read
    other.receive_into([memoryview(bytearray(9))], [])
    assert other.has_ended()


def test_only_a_peer_that_has_sent_nothing_is_silent(pair: Pair) -> None:
    """Bytes that have left the socket are received first; half a record is not lost."""
    one, other = pair
    other.report_silence(0.001)
    data, received = bytearray(3), list[int]()
    one.send_some([memoryview(b"abcdef")], [])
    for expected in (b"abc", b"def"):
        other.receive_into([memoryview(data)], received)
        assert bytes(data) == expected
    for _ in range(2):
        with pytest.raises(TimeoutError):
            other.receive_into([memoryview(data)], received)
    one._tls._encrypt(b"ghi", [])
    record = one._tls._encrypted.read()
    one.sock.sendall(record[:9])
    with pytest.raises(TimeoutError):
        other.receive_into([memoryview(data)], received)
    one.sock.sendall(record[9:])
    other.receive_into([memoryview(data)], received)
    assert (received, bytes(data)) == ([3, 3, 3], b"ghi")


def test_nonsense_ends_the_connection(pair: Pair) -> None:
    """As a broken one; no error of OpenSSL comes out."""
    one, other = pair
    one.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(EOFError, match="connection lost"):
        other.receive_into([memoryview(bytearray(9))], [])
    assert other.closed


@pytest.mark.slow
def test_an_interrupt_that_no_system_call_hears_of_ends_a_wait(pair: Pair) -> None:
    """Both ways; nothing that was counted is lost."""
    ours, theirs = pair
    ours.stay_interruptible()
    data = memoryview(bytearray(2))
    counts: list[int] = []
    with swallowed_interrupt(TlsSocket._receive), pytest.raises(KeyboardInterrupt):
        ours.receive_into([data], counts)
    theirs.send_some([memoryview(b"ab")], [])
    ours.receive_into([data], counts)
    assert (counts, bytes(data)) == ([2], b"ab")
    sent: list[int] = []
    with swallowed_interrupt(TlsSocket.flush), pytest.raises(KeyboardInterrupt):
        endlessly(ours.send_some, [memoryview(bytes(1 << 20))], sent)
    rest = threading.Thread(target=ours.flush)  # what is encrypted goes out first
    rest.start()
    room = memoryview(bytearray(1 << 20))
    come: list[int] = []
    while sum(come) < sum(sent):
        theirs.receive_into([room], come)
    rest.join()
    assert sum(come) == sum(sent)


def test_the_kind_of_a_stream_follows_from_the_connection() -> None:
    """Both wait for ever."""
    plain, peer = socket.socketpair()
    tls, tls_peer = tls_pair(*socket.socketpair())
    with peer, tls_peer.raw:
        streams = [stream_over(plain), stream_over(tls)]
        assert [type(stream) for stream in streams] == [BulkStream, TlsStream]
        assert [stream.sock.gettimeout() for stream in streams] == [None, None]
        for stream in streams:
            stream.close()
