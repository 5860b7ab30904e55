from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import count, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire import Frame, frames, stream
from jaxd_protocol.wire.frames import (
    FrameReader,
    decompress,
    too_large,
    too_many,
    too_many_descriptors,
)
from tests.shared.wire.by_hand import Sent, arriving, frame_bytes, frames_of, streams
from tests.shared.wire.interrupt import Interrupt

PLACES = 4000  # about as many opcodes as reading the larger frames takes
LIMIT = 1 << 24


@pytest.fixture
def small_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is special about 64 kB happens at 64 bytes."""
    monkeypatch.setattr(frames, "_READ_AHEAD", 64)


def received(frame: Frame) -> Sent:
    return bytes(frame), tuple(map(bytes, frame.buffers))


def read_all(reader: FrameReader) -> Iterator[Sent]:
    """Every frame up to the end of the stream."""
    return map(received, frames_of(reader))


def numbered(sizes: list[int]) -> tuple[bytes, ...]:
    """Buffers of these sizes, no two of them alike."""
    return tuple(bytes([n % 251]) * size for n, size in enumerate(sizes, 1))


MIXED: dict[str, tuple[bytes, tuple[bytes, ...], bool]] = {
    "empty": (b"", (), False),
    "larger than the read-ahead": (b"x" * 150, (), False),
    "buffers, some of them read ahead": (b"buffers", numbered([3, 90, 5]), False),
    "empty buffers": (b"none, one byte, none", numbered([0, 1, 0]), False),
    "sizes that are more than the read-ahead": (b"table", numbered([2] * 12), False),
    "a large body beside buffers": (b"y" * 100, numbered([0, 70]), False),
    "compressed": (b"short when compressed " * 9, (), True),
    "compressed, and large all the same": (random.Random(1).randbytes(90), (), True),
}


def in_steps(sizes: list[int], receive: frames.ReceiveInto) -> frames.ReceiveInto:
    """As `receive`, but no more at once than each size in turn."""
    step = cycle(sizes)
    return lambda views, counts: receive([views[0][: next(step)]], counts)


@pytest.mark.usefixtures("small_read_ahead")
@pytest.mark.parametrize(
    ("steps", "every"),
    [
        pytest.param([1 << 16], 1, id="all there", marks=pytest.mark.soak),
        pytest.param([40, 7], 1, id="in pieces", marks=pytest.mark.soak),
        pytest.param([40, 7], 5, id="in pieces, a sample"),
    ],
)
@pytest.mark.parametrize("case", MIXED)
def test_a_reader_that_is_interrupted_anywhere_goes_on_where_it_was(
    case: str, steps: list[int], every: int
) -> None:
    """Before every single opcode, or every fifth: exactly the frames sent, in order, none lost."""
    body, buffers, compressed = MIXED[case]
    middle = frame_bytes(body, buffers, compressed=compressed)
    wire = frame_bytes(b"first") + middle + frame_bytes(b"last", (b"1",))
    for n in count(1, every):
        with arriving(wire) as incoming:
            reader = FrameReader(in_steps(steps, incoming.receive_into), LIMIT, inflates=True)
            with Interrupt(n, frames, stream) as interrupt:
                found = list(read_all(reader))
        assert found == [(b"first", ()), (body, buffers), (b"last", (b"1",))], n
        if not interrupt.fired:
            assert n > 500
            return


def test_an_interrupted_reader_goes_on_also_with_many_and_large_buffers() -> None:
    """The same at full size, at a sample of places: the table of sizes straddles the read-ahead."""
    sent = [
        (b"x" * 64_000, numbered([5] * 300)),
        (b"y" * 70_000, ()),
        (b"z", numbered([100_000, 0, 1])),
    ]
    wire = b"".join(frame_bytes(*frame) for frame in sent)
    fired = 0
    for n in random.Random(2).sample(range(1, PLACES), 60):
        with arriving(wire) as incoming, Interrupt(n, frames, stream) as interrupt:
            assert list(read_all(FrameReader(incoming.receive_into, LIMIT))) == sent
        fired += interrupt.fired
    assert fired > 20  # Python 3.13 needs fewer opcodes than there are places


bodies = st.binary(max_size=200)
parts = st.lists(st.binary(max_size=90), max_size=14).map(tuple)


@given(st.lists(st.tuples(bodies, parts), max_size=6), st.lists(st.integers(1, 100), min_size=1))
def test_frames_do_not_depend_on_how_their_bytes_arrive(sent: list[Sent], steps: list[int]) -> None:
    """Whatever a `recv` happens to give."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_READ_AHEAD", 64)
        wire = b"".join(frame_bytes(*frame) for frame in sent)
        with arriving(wire) as incoming:
            reader = FrameReader(in_steps(steps, incoming.receive_into), LIMIT)
            assert list(read_all(reader)) == sent
            assert not reader.has_input()


def test_a_connection_that_says_little_holds_little() -> None:
    """There may be thousands; one that says more reads far ahead from then on."""
    with arriving(frame_bytes(b"x" * 1000) * 3 + frame_bytes(b"x" * 5000)) as incoming:
        reader = FrameReader(incoming.receive_into, LIMIT)
        sizes = []
        for _ in range(4):
            reader.peek()
            reader.advance()
            sizes.append(len(reader._at[0].data))
    assert sizes == [4096, 4096, 4096, 65536]


def test_a_table_of_sizes_may_be_larger_than_the_read_ahead() -> None:
    """20,000 sizes are 160 kB."""
    sent = (b"many", numbered([1] * 20_000))
    with arriving(frame_bytes(*sent)) as incoming:
        assert list(read_all(FrameReader(incoming.receive_into, LIMIT))) == [sent]


def test_a_message_stays_the_next_one_until_it_is_consumed() -> None:
    """The same object each time."""
    with arriving(frame_bytes(b"one", (b"1",)) + frame_bytes(b"two")) as incoming:
        reader = FrameReader(incoming.receive_into, LIMIT)
        first = reader.peek()
        assert reader.peek() is first
        assert received(first) == (b"one", (b"1",))
        assert reader.bytes_received == 0
        reader.advance()
        assert reader.bytes_received == 4
        assert reader.has_input()
        assert reader.peek() == b"two"


def test_consuming_nothing_does_nothing() -> None:
    """`advance` without a `peek` before it."""
    with arriving(frame_bytes(b"one")) as incoming:
        reader = FrameReader(incoming.receive_into, LIMIT)
        reader.advance()
        assert reader.peek() == b"one"


TERA = 1 << 40
ANNOUNCED: dict[str, tuple[bytes, type[Exception]]] = {
    "a body": (struct.pack("!LB", 0xFFFFFFFF, 0), LimitExceeded),
    "the greeting of our own clients": (b"JAXD\0\0", LimitExceeded),
    "a compressed body": (struct.pack("!LB", LIMIT + 1, 1), LimitExceeded),
    "a buffer": (struct.pack("!LB1sLQ", 0, 2, b"\n", 1, TERA), LimitExceeded),
    "buffers": (struct.pack("!LB1sL2Q", 0, 2, b"\n", 2, LIMIT, 1), LimitExceeded),
    "a table": (struct.pack("!LB1sL", 0, 2, b"\n", 0xFFFFFFFF), LimitExceeded),
    "an unknown flag": (struct.pack("!LB", 1, 4), ProtocolError),
    "both flags": (struct.pack("!LB", 1, 3), ProtocolError),
    "no zlib stream": (struct.pack("!LB3s", 2, 1, b"ab\n"), ProtocolError),
    "half a zlib stream": (struct.pack("!LB8s", 7, 1, zlib.compress(b"a" * 9)), ProtocolError),
}


@pytest.mark.parametrize("case", ANNOUNCED)
def test_what_is_announced_is_refused_before_memory_is_taken(case: str) -> None:
    """A few bytes cannot make the other end take a terabyte."""
    wire, refusal = ANNOUNCED[case]
    with arriving(wire) as incoming:
        reader = FrameReader(incoming.receive_into, LIMIT, inflates=True)
        peak = _peak_of(reader.peek, refusal)
    assert peak < 1 << 20


def _peak_of(action: Callable[[], object], refusal: type[Exception]) -> int:
    """Bytes that Python and numpy took at most before the action was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(refusal):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_refused_message_is_refused_again() -> None:
    """Nothing behind it is taken for a message."""
    with arriving(ANNOUNCED["a buffer"][0] + frame_bytes(b"next")) as incoming:
        reader = FrameReader(incoming.receive_into, LIMIT)
        for _ in range(2):
            with pytest.raises(LimitExceeded):
                reader.peek()


def test_a_compressed_message_inflates_no_further_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 kB of zeros can stand for 1 MB."""
    monkeypatch.setattr(frames, "MAX_DECOMPRESSED_BYTES", 1 << 16)
    with arriving(frame_bytes(bytes(1 << 20), compressed=True)) as incoming:
        peak = _peak_of(
            FrameReader(incoming.receive_into, LIMIT, inflates=True).peek, LimitExceeded
        )
    assert peak < 1 << 18


def test_what_our_own_ends_never_send_is_not_inflated() -> None:
    """A compressed frame comes from a stock peer, and only servers have any."""
    with (
        arriving(frame_bytes(b"x" * 5000, compressed=True)) as incoming,
        pytest.raises(ProtocolError, match="unknown frame flags 1"),
    ):
        FrameReader(incoming.receive_into, LIMIT).peek()


def test_a_stream_that_ends_inside_a_frame_ends() -> None:
    """At whatever byte: never a frame that is cut short."""
    wire = frame_bytes(b"body", (b"buffer", b"another"))
    for end in range(len(wire)):
        with streams() as (ours, theirs):
            theirs.sock.sendall(wire[:end])
            theirs.close()
            with pytest.raises(EOFError):
                FrameReader(ours.receive_into, LIMIT).peek()


def test_a_hurried_reader_gives_up_anywhere_and_goes_on_there() -> None:
    """In the middle of whatever it was reading; without haste it waits as ever."""
    sent = [(b"x" * 150_000, numbered([3, 90_000, 5])), (b"second", ())]
    wire = memoryview(b"".join(frame_bytes(*one) for one in sent))
    begun = 0

    def receive(views: list[memoryview], counts: list[int]) -> None:
        nonlocal begun
        if begun == len(wire):
            raise EOFError
        step = min(7000, len(views[0]), len(wire) - begun)
        views[0][:step] = wire[begun : begun + step]
        counts.append(step)
        begun += step

    reader = FrameReader(receive, 1 << 20)
    turns = cycle([True, False])
    found: list[Sent] = []
    waits = 0
    while len(found) < len(sent):
        with reader.bounded_wait(lambda: next(turns)):
            try:
                found.append(received(reader.peek()))
            except TimeoutError:
                waits += 1
                continue
        reader.advance()
    assert (found, waits > 10) == (sent, True)
    with pytest.raises(EOFError):
        reader.peek()


@pytest.mark.parametrize(("over", "refused"), [(-1, False), (0, False), (1, True), (9999, True)])
def test_inflation_stops_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, over: int, refused: bool
) -> None:
    """What is exactly as large as allowed passes."""
    monkeypatch.setattr(frames, "MAX_DECOMPRESSED_BYTES", 50_000)
    frame = Frame(zlib.compress(bytes(50_000 + over)))
    if refused:
        with pytest.raises(LimitExceeded, match="beyond 50,000 bytes"):
            decompress(frame)
    else:
        assert len(decompress(frame)) == 50_000 + over


def test_what_a_frame_becomes_is_admitted_first() -> None:
    """To the byte, and before there is memory for it."""
    bomb, admitted = Frame(zlib.compress(bytes(50 << 20))), list[int]()

    def refuse(nbytes: int) -> None:
        admitted.append(nbytes)
        raise LimitExceeded("no room.")

    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            decompress(bomb, refuse)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert admitted == [50 << 20]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_compressed_frame_that_is_cut_short_is_refused(cut: int) -> None:
    """Never half a message."""
    with pytest.raises(ProtocolError, match="compressed frame cannot be read"):
        decompress(Frame(zlib.compress(b"body of a message")[:-cut]))


def test_a_message_over_the_limit_says_what_to_do() -> None:
    """The texts name the size, the limit and the way out."""
    assert "9,000 bytes is over the limit of 8,000" in too_large(9000, 8000)
    assert "--max-frame-bytes" in too_large(9000, 8000)
    assert "70,000 large arrays; 65,536" in too_many(70_000)
    assert "70 open files beside it; 64" in too_many_descriptors(70)
