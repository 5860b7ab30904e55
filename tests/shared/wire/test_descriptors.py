"""Open files beside messages: none lost, none mixed up, none left open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire import BulkChannel, BulkStream, frames, stream
from jaxd_protocol.wire.frames import Frame, FrameReader
from jaxd_protocol.wire.stream import MAX_DESCRIPTORS, can_pass
from tests.shared.wire.by_hand import (
    count_open,
    file_of,
    frame_bytes,
    frames_of,
    open_files,
    send_with,
    streams,
)
from tests.shared.wire.interrupt import Interrupt

LIMIT = 1 << 24

Seen = tuple[bytes, tuple[bytes, ...], list[int]]
"""Body, buffers, and the files behind the descriptors."""


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open no more files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)  # the lowest free number: all below it are taken
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(highest)


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    """The first one takes descriptors."""
    before = count_open()
    with streams() as (ours, theirs):
        ours.expect_descriptors()
        yield ours, theirs
        ours.arrivals = None  # as when nobody holds the stream any more, which pytest does
    assert count_open() == before


def seen(frame: Frame) -> Seen:
    return bytes(frame), tuple(map(bytes, frame.buffers)), list(map(file_of, frame.descriptors))


Sending = tuple[bytes, tuple[bytes, ...], int]
"""Body, buffers, and how many descriptors."""

MIXED: list[Sending] = [
    (b"without", (), 0),
    (b"two", (), 2),
    (b"one, and buffers", (b"1", b"", b"x" * 90), 1),
    (b"buffers alone", (b"1",), 0),
    (b"three, and a body that is larger than the read-ahead" * 3, (), 3),
    (b"one, and all of that" * 9, (b"y" * 70,), 1),
    (b"without", (), 0),
]


def send_all(sock: socket.socket, messages: list[Sending], numbers: list[int]) -> list[Seen]:
    """Sends these messages and the end, and returns what is to be found."""
    sent: list[Seen] = []
    for body, buffers, n in messages:
        mine, numbers = numbers[:n], numbers[n:]
        send_with(sock, frame_bytes(body, buffers, descriptors=n), mine)
        sent.append((body, buffers, list(map(file_of, mine))))
    sock.shutdown(socket.SHUT_WR)
    return sent


@pytest.mark.parametrize("read_ahead", [64, 1 << 16])
@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_descriptors_come_with_their_message_however_its_bytes_arrive(
    pair: tuple[BulkStream, BulkStream],
    monkeypatch: pytest.MonkeyPatch,
    read_ahead: int,
    step: int,
) -> None:
    """In the order in which they were sent, and only with the message that they were sent with."""
    monkeypatch.setattr(frames, "_READ_AHEAD", read_ahead)
    ours, theirs = pair
    with open_files(7) as numbers:
        sent = send_all(theirs.sock, MIXED, numbers)
        reader = FrameReader(
            lambda views, counts: ours.receive_into([views[0][:step]], counts),
            LIMIT,
            arrivals=ours.arrivals,
        )
        assert list(map(seen, frames_of(reader))) == sent


@pytest.mark.parametrize("step", [40, 1 << 16])
def test_a_reader_that_is_interrupted_anywhere_loses_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Before each 131st opcode once; none stays open either."""
    monkeypatch.setattr(frames, "_READ_AHEAD", 64)
    messages = [MIXED[n] for n in (1, 2, 5)]
    with open_files(4) as numbers:
        before = count_open()
        for n in count(step % 131, 131):
            with streams() as (ours, theirs):
                ours.expect_descriptors()
                sent = send_all(theirs.sock, messages, numbers)
                receive = ours.receive_into
                reader = FrameReader(
                    lambda views, counts, receive=receive: receive([views[0][:step]], counts),  # type: ignore[misc]
                    LIMIT,
                    arrivals=ours.arrivals,
                )
                with Interrupt(n, frames, stream) as interrupt:
                    arrived = list(frames_of(reader))
                assert list(map(seen, arrived)) == sent, n
            del ours, theirs, reader, receive, arrived
            if n % 3 == 0 or not interrupt.fired:
                assert count_open() == before, n
            if not interrupt.fired:
                assert n > 500
                return


def test_what_nobody_takes_is_closed_with_its_message(pair: tuple[BulkStream, BulkStream]) -> None:
    """And what somebody took stays open."""
    ours, theirs = pair
    channel = BulkChannel(ours)
    with open_files(2) as numbers:
        before = count_open()
        send_with(theirs.sock, frame_bytes(b"", descriptors=2), numbers)
        frame = channel.recv()
        assert count_open() == before + 2
        taken = frame.descriptors.pop(0)
        del frame
        assert count_open() == before + 1
        assert file_of(taken) == file_of(numbers[0])
        os.close(taken)


def test_what_arrives_cannot_be_inherited(pair: tuple[BulkStream, BulkStream]) -> None:
    """A process that is started meanwhile does not hold it open."""
    ours, theirs = pair
    with open_files(1) as numbers:
        os.set_inheritable(numbers[0], True)
        send_with(theirs.sock, frame_bytes(b"", descriptors=1), numbers)
        frame = BulkChannel(ours).recv()
        assert not os.get_inheritable(frame.descriptors[0])


def test_it_is_made_so_also_where_the_kernel_cannot(
    pair: tuple[BulkStream, BulkStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without MSG_CMSG_CLOEXEC, afterwards."""
    monkeypatch.setattr(stream, "_NOT_INHERITABLE", 0)
    test_what_arrives_cannot_be_inherited(pair)


@pytest.mark.parametrize("end", [0, 3, 9, 13])
def test_a_stream_that_ends_inside_a_message_leaves_nothing_open(
    pair: tuple[BulkStream, BulkStream], end: int
) -> None:
    """Its descriptors came with its first byte."""
    ours, theirs = pair
    wire = frame_bytes(b"body", (b"buffer",), descriptors=1)
    with open_files(1) as numbers:
        if end:
            send_with(theirs.sock, wire[:end], numbers)
        theirs.close()
        with pytest.raises(EOFError):
            BulkChannel(ours).recv()


def test_a_refused_message_leaves_nothing_open(pair: tuple[BulkStream, BulkStream]) -> None:
    """Whatever it is refused for."""
    ours, theirs = pair
    with open_files(1) as numbers:
        send_with(theirs.sock, frame_bytes(b"", descriptors=MAX_DESCRIPTORS + 1), numbers)
        with pytest.raises(LimitExceeded, match="65 open files"):
            BulkChannel(ours).recv()


def test_descriptors_that_no_message_announces_are_refused(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """They would fill the table of this process."""
    ours, theirs = pair
    channel = BulkChannel(ours)
    with open_files(1) as numbers:
        for _ in range(8):
            send_with(theirs.sock, frame_bytes(b""), numbers)
            channel.recv()
        send_with(theirs.sock, frame_bytes(b""), numbers)
        with pytest.raises(ProtocolError, match="no message announces"):
            channel.recv()


def test_more_than_one_message_can_carry_are_not_received(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """The kernel drops what there is no room for, and the message shows that some are missing."""
    ours, theirs = pair
    with open_files(1) as numbers:
        before = count_open()
        send_with(theirs.sock, frame_bytes(b"", descriptors=64), numbers * 80)
        frame = BulkChannel(ours).recv()
        assert count_open() == before + 64
        assert (len(frame.descriptors), frame.announced) == (64, 64)


def test_a_message_whose_descriptors_were_lost_says_so_and_the_next_one_keeps_its_own(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """As in a process that may open no more files."""
    ours, theirs = pair
    channel = BulkChannel(ours)
    with open_files(2) as numbers:
        send_with(theirs.sock, frame_bytes(b"full", descriptors=2), numbers)
        with no_more_files():
            lost = channel.recv()
        assert (lost, list(lost.descriptors), lost.announced) == (b"full", [], 2)
        send_with(theirs.sock, frame_bytes(b"next", descriptors=1), numbers[1:])
        assert seen(channel.recv()) == (b"next", (), [file_of(numbers[1])])


def test_an_end_that_does_not_expect_them_takes_none() -> None:
    """The kernel closes what is not asked for; a message that announces some is refused."""
    with streams() as (ours, theirs), open_files(1) as numbers:
        before = count_open()
        send_with(theirs.sock, frame_bytes(b"plain"), numbers)
        channel = BulkChannel(ours)
        assert channel.recv() == b"plain"
        assert count_open() == before
        send_with(theirs.sock, frame_bytes(b"", descriptors=1), numbers)
        with pytest.raises(ProtocolError, match="flags 4"):
            channel.recv()


def test_over_tcp_nothing_but_bytes_can_travel() -> None:
    """Nor does anybody expect more."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sock,
    ):
        assert not can_pass(sock)
        tcp = BulkStream(sock)
        tcp.expect_descriptors()
        assert tcp.arrivals is None
        assert not tcp.passes_descriptors


def test_a_system_without_them_passes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has Unix sockets, but no SCM_RIGHTS."""
    monkeypatch.delattr(socket, "SCM_RIGHTS")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not can_pass(ours)
