from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from jaxd_protocol.errors import InternalError, LimitExceeded
from jaxd_protocol.wire import BulkChannel, BulkStream, frames, stream, tls_socket
from jaxd_protocol.wire.frames import MAX_BUFFERS, FrameReader, FrameWriter
from jaxd_protocol.wire.stream import MAX_DESCRIPTORS
from tests.shared.wire.by_hand import Sent, file_of, frame_bytes, open_files, streams
from tests.shared.wire.interrupt import HANDLES_SIGNALS, Interrupt
from tests.shared.wire.test_frame_reader import read_all, received

LIMIT = 1 << 24
MODULES = (frames, stream, tls_socket)


def write(writer: FrameWriter, frame: Sent) -> None:
    body, buffers = frame
    writer.write(body, [memoryview(buffer) for buffer in buffers])


def write_all(writer: FrameWriter, sent: list[Sent]) -> None:
    for frame in sent:
        write(writer, frame)


def a_little_of(outgoing: BulkStream, at_once: int = 40) -> frames.SendSome:
    """As a socket whose buffer is nearly full."""

    def send_some(views: list[memoryview], sent: list[int], descriptors: Sequence[int]) -> None:
        outgoing.send_some([views[0][:at_once]], sent, descriptors)

    return send_some


@contextmanager
def written(*, tls: bool = False) -> Iterator[tuple[BulkStream, Callable[[], list[Sent]]]]:
    """A stream to write to, and a function that ends it and reads all frames."""
    with streams(tls=tls) as (outgoing, incoming):

        def result() -> list[Sent]:
            outgoing.close()
            return list(read_all(FrameReader(incoming.receive_into, LIMIT)))

        yield outgoing, result


FRAMES: list[Sent] = [
    (b"small", ()),
    (b"", ()),
    (b"beside it", (b"one", b"", b"three" * 9)),
    (b"large enough to be sent without a copy" * 1000, ()),
    (b"large, and buffers" * 3000, (b"buffer",) * 3),
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_the_bytes_are_those_of_the_description(frame: Sent) -> None:
    """However they are joined or sent from where they lie."""
    with streams() as (outgoing, incoming):
        writer = FrameWriter(outgoing.send_some, LIMIT)
        write(writer, frame)
        outgoing.close()
        found = b""
        while part := incoming.sock.recv(1 << 20):
            found += part
    assert found == frame_bytes(*frame)
    assert writer.bytes_sent == len(found)


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_a_frame_may_go_out_in_small_parts(frame: Sent) -> None:
    """A socket takes what it has room for."""
    with written() as (outgoing, result):
        write(FrameWriter(a_little_of(outgoing, 4000), LIMIT), frame)
        assert result() == [frame]


def test_more_parts_than_one_system_call_takes() -> None:
    """The kernel's limit is 1,024."""
    frame = (b"many", tuple(b"%d" % n for n in range(3000)))
    with written() as (outgoing, result):
        write(FrameWriter(outgoing.send_some, LIMIT), frame)
        assert result() == [frame]


BEFORE: Sent = (b"before", ())
INTERRUPTED: Sent = (b"interrupted", (b"1" * 50, b"2" * 90))
BEHIND: Sent = (b"behind", (b"3",))


@pytest.mark.parametrize("way", ["small parts", "at once", "over TLS"])
def test_an_interrupted_message_goes_out_whole_or_not_at_all(way: str) -> None:
    """At every place where a signal may be handled; what others send stays whole and in order."""
    outcomes = set()
    for n in count(1):
        with written(tls=way == "over TLS") as (outgoing, result):
            send_some = a_little_of(outgoing) if way == "small parts" else outgoing.send_some
            writer = FrameWriter(send_some, LIMIT, outgoing.flush)
            write(writer, BEFORE)
            with Interrupt(n, *MODULES, after=HANDLES_SIGNALS) as interrupt:
                try:
                    write(writer, INTERRUPTED)
                except KeyboardInterrupt:
                    assert interrupt.fired
            other = threading.Thread(target=write, args=(writer, BEHIND))
            other.start()
            other.join()
            found = result()
        outcomes.add(len(found))
        assert found in ([BEFORE, BEHIND], [BEFORE, INTERRUPTED, BEHIND]), n
        if not interrupt.fired:
            assert outcomes == {2, 3}
            return


HELD: Sent = (b"held", ())


@pytest.mark.parametrize("then", [INTERRUPTED, None], ids=["another message", "send_held"])
@pytest.mark.parametrize("small", [True, False], ids=["small parts", "at once"])
def test_an_interrupt_loses_and_repeats_no_message_that_waited_for_the_next(
    small: bool, then: Sent | None
) -> None:
    """At every place where a signal may be handled, while they go out together."""
    outcomes = set()
    for n in count(1):
        with written() as (outgoing, result):
            writer = FrameWriter(a_little_of(outgoing) if small else outgoing.send_some, LIMIT)
            writer.write(BEFORE[0], more=True)
            writer.write(HELD[0], more=True)
            with Interrupt(n, frames, stream, after=HANDLES_SIGNALS) as interrupt:
                try:
                    writer.send_held() if then is None else write(writer, then)
                except KeyboardInterrupt:
                    assert interrupt.fired
            other = threading.Thread(target=write, args=(writer, BEHIND))
            other.start()
            other.join()
            found = result()
        outcomes.add(len(found))
        assert [each for each in found if each != INTERRUPTED] == [BEFORE, HELD, BEHIND], n
        assert found.index(BEHIND) == len(found) - 1
        if not interrupt.fired:
            assert outcomes == {3} if then is None else {3, 4}
            return


def test_messages_that_wait_go_out_with_the_next_one() -> None:
    """In one system call; nothing is sent before that, and no more than a few wait."""
    calls: list[int] = []
    with written() as (outgoing, result):

        def send_some(views: list[memoryview], sent: list[int], files: Sequence[int]) -> None:
            outgoing.send_some(views, sent, files)
            calls.append(sent[-1])

        writer = FrameWriter(send_some, LIMIT)
        for _ in range(3):
            writer.write(HELD[0], more=True)
        assert not calls
        write(writer, BEHIND)
        assert len(calls) == 1
        for _ in range(100):
            writer.write(HELD[0], more=True)
        assert 100 / 20 < len(calls) < 100 / 10
        writer.send_held()
        assert result() == [HELD] * 3 + [BEHIND] + [HELD] * 100


@pytest.mark.parametrize("small", [True, False], ids=["small parts", "at once"])
def test_an_interrupted_message_takes_its_open_files_along_exactly_once(small: bool) -> None:
    """Or stays behind with them."""
    outcomes = set()
    with open_files(3) as numbers:
        names = list(map(file_of, numbers))
        for n in count(1):
            with streams() as (outgoing, incoming):
                incoming.expect_descriptors()
                writer = FrameWriter(a_little_of(outgoing) if small else outgoing.send_some, LIMIT)
                with Interrupt(n, frames, stream, after=HANDLES_SIGNALS) as interrupt:
                    try:
                        writer.write(b"two" * 50, [memoryview(b"1" * 50)], numbers[:2])
                    except KeyboardInterrupt:
                        assert interrupt.fired
                writer.write(b"one", (), numbers[2:])
                outgoing.close()
                channel = BulkChannel(incoming)
                found = []
                with suppress(EOFError):
                    while True:
                        found.append(list(map(file_of, channel.recv().descriptors)))
            outcomes.add(len(found))
            assert found in ([names[2:]], [names[:2], names[2:]]), n
            if not interrupt.fired:
                assert outcomes == {1, 2}
                return


@pytest.mark.parametrize("buffers", [(), (b"one", b"x" * 70_000)], ids=["none", "some"])
def test_open_files_go_out_with_the_first_byte(buffers: tuple[bytes, ...]) -> None:
    """And stand in the frame before the buffers."""
    with streams() as (outgoing, incoming), open_files(2) as numbers:
        writer = FrameWriter(a_little_of(outgoing, 1000), LIMIT)
        writer.write(b"body", [memoryview(buffer) for buffer in buffers], numbers)
        outgoing.close()
        found, received, _, _ = socket.recv_fds(incoming.sock, 1, 9)
        assert list(map(file_of, received)) == list(map(file_of, numbers))
        for descriptor in received:
            os.close(descriptor)
        while part := incoming.sock.recv(1 << 20):
            found += part
    assert found == frame_bytes(b"body", buffers, descriptors=2)


def test_the_rest_of_an_interrupted_message_needs_no_other_message() -> None:
    """Its reader does not hang on half of it."""
    interrupts = iter([KeyboardInterrupt])

    def send_some(views: list[memoryview], sent: list[int], _: Sequence[int]) -> None:
        outgoing.send_some([views[0][:10]], sent)
        for interrupt in interrupts:
            raise interrupt

    with streams() as (outgoing, incoming):
        writer = FrameWriter(send_some, LIMIT)
        with pytest.raises(KeyboardInterrupt):
            write(writer, INTERRUPTED)
        assert received(FrameReader(incoming.receive_into, LIMIT).peek()) == INTERRUPTED


def test_many_threads_write_whole_messages() -> None:
    """Each one's in its own order."""
    with streams() as (outgoing, incoming):
        writer = FrameWriter(outgoing.send_some, LIMIT)
        sent = [
            [(b"%d %d" % (k, n), (b"x" * 9000,) * (n % 3)) for n in range(40)] for k in range(4)
        ]
        threads = [threading.Thread(target=write_all, args=(writer, mine)) for mine in sent]
        for thread in threads:
            thread.start()
        reader = FrameReader(incoming.receive_into, LIMIT)
        found = []
        for _ in range(160):
            found.append(received(reader.peek()))
            reader.advance()
        for thread in threads:
            thread.join()
    for k, mine in enumerate(sent):
        assert [frame for frame in found if frame[0].startswith(b"%d " % k)] == mine


def test_when_write_returns_the_buffer_is_free() -> None:
    """What the caller does to it afterwards does not show."""
    with written() as (outgoing, result):
        data = bytearray(b"as it was")
        FrameWriter(outgoing.send_some, LIMIT).write(b"", [memoryview(data)])
        data[:] = b"changed!!"
        assert result() == [(b"", (b"as it was",))]


@pytest.mark.parametrize(
    ("body", "buffers"),
    [
        (bytes(40_000), []),
        (b"", [memoryview(bytes(40_000))]),
        (b"", [memoryview(b"")] * (MAX_BUFFERS + 1)),
    ],
    ids=["body", "buffer", "number of buffers"],
)
def test_a_message_over_the_limit_is_refused_and_nothing_is_sent(
    body: bytes, buffers: list[memoryview]
) -> None:
    """The connection goes on as before."""
    with written() as (outgoing, result):
        writer = FrameWriter(outgoing.send_some, 39_999)
        with pytest.raises(LimitExceeded):
            writer.write(body, buffers)
        write(writer, BEHIND)
        assert result() == [BEHIND]


def test_too_many_open_files_are_refused_and_nothing_is_sent() -> None:
    """As above."""
    with written() as (outgoing, result):
        writer = FrameWriter(outgoing.send_some, LIMIT)
        with pytest.raises(LimitExceeded, match="65 open files"):
            writer.write(b"", (), [0] * (MAX_DESCRIPTORS + 1))
        write(writer, BEHIND)
        assert result() == [BEHIND]


def test_open_files_that_cannot_travel_are_refused_and_nothing_is_sent() -> None:
    """It is a mistake of ours to try: the connection goes on as before."""
    with written() as (outgoing, result):
        outgoing.passes_descriptors = False
        writer = FrameWriter(outgoing.send_some, LIMIT)
        with pytest.raises(InternalError, match="cannot travel"):
            writer.write(b"", (), [0])
        write(writer, BEHIND)
        assert result() == [BEHIND]


def test_a_broken_connection_is_the_end_for_every_writer() -> None:
    """Nobody waits for ever behind the frame that could not be sent."""
    with streams() as (outgoing, incoming):
        incoming.close()
        writer = FrameWriter(outgoing.send_some, LIMIT)
        for _ in range(2):
            with pytest.raises(EOFError):
                write(writer, INTERRUPTED)
