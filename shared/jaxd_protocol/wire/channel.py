"""rpyc's channel, with buffers beside the body and reads that can be taken up by another thread.

One of the doors to rpyc; relies on `Channel.stream`, `Channel.send`, `Channel.recv` and
`Channel.poll`, which `rpyc.core.protocol.Connection` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpyc.core.channel import Channel

from jaxd_protocol.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame
from jaxd_protocol.wire.reading import FrameReader
from jaxd_protocol.wire.stream import BulkStream
from jaxd_protocol.wire.writing import FrameWriter

__all__ = ["BulkChannel"]


class BulkChannel(Channel):  # type: ignore[misc]
    """Messages over one socket. Any thread may send; one thread at a time may read.

    Args:
        stream: the connected stream.
        max_frame_bytes: larger messages are refused both ways, before any memory is taken.
        admit: called with the size of an arriving message before memory is taken for its
            buffers; it may block (back-pressure).
        inflates: whether the peer may be a stock one of rpyc's, which compresses; ours never do.
    """

    def __init__(
        self,
        stream: BulkStream,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        admit: Callable[[int], None] | None = None,
        *,
        inflates: bool = False,
    ) -> None:
        super().__init__(stream, compress=False)
        self.reader = FrameReader(
            stream.receive_into, max_frame_bytes, admit, stream.arrivals, inflates=inflates
        )
        self.writer = FrameWriter(stream.send_some, max_frame_bytes, stream.flush)

    def send(
        self, data: bytes, buffers: Sequence[memoryview] = (), descriptors: Sequence[int] = ()
    ) -> None:
        """Sends one message; see `FrameWriter.write`."""
        self.writer.write(data, buffers, descriptors)

    def recv(self) -> Frame:
        """The next message, consumed; see `FrameReader.peek` for what it raises."""
        frame = self.reader.peek()
        self.reader.advance()
        return frame

    def poll(self, timeout: object) -> bool:
        """Whether `recv` would find bytes within `timeout`: seconds, None, or rpyc's `Timeout`."""
        seconds = timeout.timeleft() if hasattr(timeout, "timeleft") else timeout
        return self.reader.has_input() or self.stream.wait_readable(seconds)
