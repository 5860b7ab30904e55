from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_protocol.wire import BulkStream, tune_socket
from jaxd_protocol.wire.stream import ReceivedDescriptors
from tests.shared.wire.by_hand import streams
from tests.shared.wire.interrupt import endlessly, swallowed_interrupt


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    with streams() as pair:
        yield pair


def test_a_tuned_socket_waits_as_long_as_it_takes() -> None:
    """A busy peer is not a dead one, and small messages leave at once."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname(), timeout=3) as sock,
    ):
        tune_socket(sock)
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_unix_socket_needs_no_tuning_but_the_timeout() -> None:
    """There is neither Nagle nor a network."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(3)
        tune_socket(ours)
        assert ours.gettimeout() is None


def test_a_system_without_an_option_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows know fewer."""
    for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_CONGESTION"):
        monkeypatch.delattr(socket, name, raising=False)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sock,
    ):
        tune_socket(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_one_receive_is_counted_once(pair: tuple[BulkStream, BulkStream]) -> None:
    """As many bytes as are there, and no more than fit."""
    ours, theirs = pair
    theirs.sock.sendall(b"abcde")
    data, counts = bytearray(3), [0]
    ours.receive_into([memoryview(data)], counts)
    assert counts == [0, 3]
    assert data == b"abc"
    ours.receive_into([memoryview(data)], counts)
    assert counts == [0, 3, 2]
    assert data == b"dec"


def test_one_receive_fills_several_views(pair: tuple[BulkStream, BulkStream]) -> None:
    """With one system call."""
    ours, theirs = pair
    theirs.sock.sendall(b"abcde")
    one, two, counts = bytearray(2), bytearray(9), [0]
    ours.receive_into([memoryview(one), memoryview(two)], counts)
    assert counts == [0, 5]
    assert one + two == b"abcde" + bytes(6)


def test_one_send_is_counted_once(pair: tuple[BulkStream, BulkStream]) -> None:
    """One part or several, with a gather-write or without."""
    ours, theirs = pair
    sent: list[int] = []
    ours.send_some([memoryview(b"ab")], sent)
    ours.send_some([memoryview(b"cd"), memoryview(b"ef")], sent)
    assert sent == [2, 4]
    assert theirs.sock.recv(9) == b"abcdef"


class _Plain:
    """A socket of Windows, which has neither `sendmsg` nor `recvmsg_into`."""

    def __init__(self, sock: Any) -> None:
        self.send, self.recv_into = sock.send, sock.recv_into


def test_a_system_without_gather_and_scatter_moves_one_part(
    pair: tuple[BulkStream, BulkStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others follow, one by one."""
    for stream in pair:
        monkeypatch.setattr(stream, "sock", _Plain(stream.sock))
    ours, theirs = pair
    moved: list[int] = []
    one, two = bytearray(2), bytearray(2)
    ours.send_some([memoryview(b"ab"), memoryview(b"cde")], moved)
    theirs.receive_into([memoryview(one), memoryview(two)], moved)
    assert moved == [2, 2]
    assert one == b"ab"


def test_a_full_socket_takes_a_part(pair: tuple[BulkStream, BulkStream]) -> None:
    """And the count says how much of it."""
    ours, _ = pair
    ours.sock.setblocking(False)
    sent: list[int] = []
    ours.send_some([memoryview(bytes(1 << 24))], sent)
    assert 0 < sent[0] < 1 << 24


def test_the_end_of_the_peer_is_the_end(pair: tuple[BulkStream, BulkStream]) -> None:
    """For reading and writing, now and ever after."""
    ours, theirs = pair
    theirs.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            ours.receive_into([memoryview(bytearray(1))], [])
        with pytest.raises(EOFError):
            ours.send_some([memoryview(b"x")], [])
    assert ours.closed


def test_a_reset_connection_is_the_end_too() -> None:
    """No OSError of the socket's own comes out."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stream = BulkStream(socket.create_connection(listening.getsockname()))
        peer, _ = listening.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        with pytest.raises(EOFError, match="connection lost"):
            stream.receive_into([memoryview(bytearray(1))], [])
        assert stream.closed


def test_silence_is_told_from_the_end(pair: tuple[BulkStream, BulkStream]) -> None:
    """Where it is asked for; what comes later is received, and nothing is lost."""
    ours, theirs = pair
    ours.report_silence(0.001)
    data, received = bytearray(8), list[int]()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            ours.receive_into([memoryview(data)], received)
    theirs.send_some([memoryview(b"abc")], [])
    ours.receive_into([memoryview(data)], received)
    assert (received, bytes(data[:3])) == ([3], b"abc")
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive_into([memoryview(data)], received)


def test_who_cannot_send_leaves_the_socket_to_who_reads(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """Its number must not become that of another file while it is waited for."""
    ours, theirs = pair
    theirs.sock.shutdown(socket.SHUT_RD)
    with pytest.raises(EOFError):
        ours.send_some([memoryview(b"x")], [])
    assert not ours.closed
    assert ours.wait_readable(None)
    with pytest.raises(EOFError):
        ours.receive_into([memoryview(bytearray(1))], [])
    assert ours.closed
    ours.shutdown()  # is nothing any more


@pytest.mark.parametrize("poll", [True, False])
def test_waiting_ends_with_bytes_or_with_the_time(
    pair: tuple[BulkStream, BulkStream], monkeypatch: pytest.MonkeyPatch, poll: bool
) -> None:
    """Also on a system that has only `select`."""
    if not poll:
        monkeypatch.delattr(select, "poll")
    ours, theirs = pair
    assert not ours.wait_readable(0)
    assert not ours.wait_readable(0.001)
    theirs.sock.sendall(b"x")
    assert ours.wait_readable(None)
    assert ours.wait_readable(5)


def test_the_end_is_readable(pair: tuple[BulkStream, BulkStream]) -> None:
    """Whoever waits is told of it."""
    ours, theirs = pair
    theirs.close()
    assert ours.wait_readable(None)


def test_a_forked_child_leaves_without_a_word_to_the_peer(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """The parent's connection stays whole."""
    ours, theirs = pair
    descriptor = os.dup(ours.sock.fileno())
    ours.abandon()  # what a child does with its copy of the descriptor
    ours.abandon()
    assert not theirs.wait_readable(0)
    os.write(descriptor, b"still here")
    os.close(descriptor)
    assert theirs.sock.recv(99) == b"still here"


@pytest.mark.slow
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("takes_files", [False, True])
def test_an_interrupt_that_no_system_call_hears_of_ends_a_wait_for_bytes(
    pair: tuple[BulkStream, BulkStream], views: int, *, takes_files: bool
) -> None:
    """Nothing is lost: what comes afterwards is received and counted."""
    ours, theirs = pair
    if takes_files:
        ours.expect_descriptors()
    ours.stay_interruptible()
    data = [memoryview(bytearray(2)) for _ in range(views)]
    counts: list[int] = []
    waiting = ReceivedDescriptors.receive_into if takes_files else BulkStream.receive_into
    with swallowed_interrupt(waiting), pytest.raises(KeyboardInterrupt):
        endlessly(ours.receive_into, data, counts)
    theirs.sock.sendall(b"ab")
    ours.receive_into(data, counts)
    assert (counts, bytes(data[0])) == ([2], b"ab")


@pytest.mark.slow
@pytest.mark.parametrize("views", [1, 2])
def test_an_interrupt_that_no_system_call_hears_of_ends_a_wait_for_room(
    pair: tuple[BulkStream, BulkStream], views: int
) -> None:
    """What was counted has gone out, and nothing else."""
    ours, theirs = pair
    ours.stay_interruptible()
    data = [memoryview(bytes(1 << 20))] * views
    sent: list[int] = []
    with swallowed_interrupt(BulkStream.send_some), pytest.raises(KeyboardInterrupt):
        endlessly(ours.send_some, data, sent)
    ours.close()
    received = 0
    while some := len(theirs.sock.recv(1 << 20)):
        received += some
    assert received == sum(sent)
