"""Staying awake for the next message, as long as that pays."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from jaxd_protocol.wire import BulkStream, tune_socket
from jaxd_protocol.wire.stream import AdaptiveWait, ReceivedDescriptors
from tests.shared.wire.by_hand import streams
from tests.shared.wire.interrupt import endlessly, swallowed_interrupt


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    with streams() as pair:
        yield pair


@pytest.fixture(params=[False, True], ids=["plain", "over TLS"])
def any_pair(request: pytest.FixtureRequest) -> Iterator[tuple[BulkStream, BulkStream]]:
    with streams(tls=request.param) as pair:
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


def test_one_receive_is_counted_once(any_pair: tuple[BulkStream, BulkStream]) -> None:
    """As many bytes as are there, and no more than fit."""
    ours, theirs = any_pair
    theirs.send_some([memoryview(b"abcde")], [])
    data, counts = bytearray(3), [0]
    ours.receive_into([memoryview(data)], counts)
    assert counts == [0, 3]
    assert data == b"abc"
    ours.receive_into([memoryview(data)], counts)
    assert counts == [0, 3, 2]
    assert data == b"dec"


def test_one_receive_fills_several_views(any_pair: tuple[BulkStream, BulkStream]) -> None:
    """With one system call."""
    ours, theirs = any_pair
    theirs.send_some([memoryview(b"abcde")], [])
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


def test_the_end_of_the_peer_is_the_end(any_pair: tuple[BulkStream, BulkStream]) -> None:
    """For reading and writing, now and ever after; whoever waits is told of it."""
    ours, theirs = any_pair
    theirs.close()
    assert ours.wait_readable(None)
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


def test_a_forked_child_leaves_without_a_word_to_the_peer(
    any_pair: tuple[BulkStream, BulkStream],
) -> None:
    """The parent's connection stays whole."""
    ours, theirs = any_pair
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


def never() -> bool:
    return False


class Counting:
    """Says yes or no, and counts how often it was asked."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.answer


def test_it_returns_as_soon_as_a_message_is_there() -> None:
    """One question is enough."""
    ready = Counting(True)
    AdaptiveWait(ready).wait()
    assert ready.asked == 1


def test_it_gives_up_when_nothing_comes() -> None:
    """The caller then sleeps, as it would have done at once."""
    AdaptiveWait(never).wait()


def awake(adaptive_wait: AdaptiveWait, ready: Counting, messages: int) -> list[int]:
    """For which of so many messages it stays awake."""
    found = []
    for number in range(messages):
        before = ready.asked
        adaptive_wait.wait()
        if ready.asked > before:
            found.append(number)
    return found


def test_it_rests_after_vain_attempts_for_longer_and_longer() -> None:
    """A peer that takes its time costs little."""
    ready = Counting(False)
    found = awake(AdaptiveWait(ready), ready, 400)
    rests = [b - a - 1 for a, b in pairwise(found) if b - a > 1]
    assert found[:4] == [0, 1, 2, 11]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (8, 32)
    assert len(found) < 60


def test_two_ends_that_rest_find_each_other_again() -> None:
    """An attempt only pays when the other end is awake as well, and their rests differ."""
    one, other = Counting(False), Counting(False)
    ends = AdaptiveWait(one), AdaptiveWait(other)
    awake(ends[0], one, 37)  # it has rested before the other has
    messages = 0
    while messages < 1000:
        messages += 1
        asked = one.asked, other.asked
        both = ends[0]._rest == ends[1]._rest == 0
        one.answer = other.answer = both
        for end in ends:
            end.wait()
        if both and one.asked > asked[0] and other.asked > asked[1]:
            break
    assert messages < 200


def test_one_success_makes_it_try_again_each_time() -> None:
    """The peer is quick again."""
    ready = Counting(False)
    adaptive_wait = AdaptiveWait(ready)
    awake(adaptive_wait, ready, 60)
    ready.answer = True
    while not awake(adaptive_wait, ready, 1):
        pass
    assert awake(adaptive_wait, ready, 50) == list(range(50))
    ready.answer = False
    assert len(awake(adaptive_wait, ready, 3)) == 3
    assert adaptive_wait._rest == 8


def test_only_one_thread_of_a_process_stays_awake() -> None:
    """A second one does not even ask: the two would only take turns."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return leave.wait(10)

    first = threading.Thread(target=AdaptiveWait(hold).wait)
    first.start()
    assert entered.wait(10)
    ready = Counting(True)
    AdaptiveWait(ready).wait()
    leave.set()
    first.join()
    assert ready.asked == 0
