from __future__ import annotations

import os
import tracemalloc
import zlib

import pytest
from rpyc.core.channel import Channel

from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire import Frame, frames
from jaxd_protocol.wire.frames import (
    FLAG_COMPRESSED,
    HEADER,
    decompress,
    too_large,
    too_many,
    too_many_descriptors,
)
from jaxd_protocol.wire.stream import Descriptors


def test_the_header_is_the_one_of_rpyc() -> None:
    """Stock peers write length and flags as we do, and flag 1 when they compress."""
    assert Channel.FRAME_HEADER.format == HEADER.format
    assert Channel.FLUSHER == frames.END
    assert FLAG_COMPRESSED == 1


def test_a_frame_is_bytes_without_buffers_until_it_gets_some() -> None:
    """Two frames do not share theirs."""
    one, other = Frame(b"one"), Frame(b"one")
    one.buffers = (memoryview(b"1"),)
    assert one == other == b"one"
    assert other.buffers == ()


def test_descriptors_are_closed_with_the_message_that_holds_them() -> None:
    """But not those that were taken out."""
    reading, writing = os.pipe()
    frame = Frame(b"")
    frame.descriptors = Descriptors([reading, writing])
    assert frame.descriptors.pop() == writing
    del frame
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)
    os.close(writing)


def test_a_compressed_frame_is_inflated() -> None:
    """Also up to the very limit."""
    assert decompress(Frame(zlib.compress(b"body"))) == b"body"
    assert decompress(Frame(zlib.compress(b""))) == b""


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
