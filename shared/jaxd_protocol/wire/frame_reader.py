"""Bytes to frames, restartable: a thread may be interrupted anywhere and another goes on.

Two rules make that true. Every byte count is appended to a list by the same C call that received
the bytes (`BulkStream.receive_into`). And the whole state is one tuple, `FrameReader._at`, that
each step replaces by a single assignment; until then the step can be done again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from jaxd_protocol.base.buffers import allocate
from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire.descriptors import ReceivedDescriptors
from jaxd_protocol.wire.frames import (
    FLAG_BUFFERS,
    FLAG_COMPRESSED,
    FLAG_DESCRIPTORS,
    HEADER,
    MAX_BODY_BYTES,
    MAX_BUFFERS,
    MAX_DESCRIPTORS,
    ByteTransfer,
    Frame,
    decompress,
    too_large,
    too_many,
    too_many_descriptors,
)

_READ_AHEAD: Final = 1 << 16
_INITIAL_BYTES: Final = 1 << 12
"""Enough for a connection that says little; of those there may be thousands."""

_ATTACHMENT_FLAGS: Final = FLAG_BUFFERS | FLAG_DESCRIPTORS

ReceiveInto = Callable[[list[memoryview], list[int]], None]


class _ReadAhead:
    """Bytes that were received before they were asked for: the first `sum(counts)` of `view`."""

    __slots__ = ("counts", "data", "view")

    def __init__(self, data: bytearray, filled: int = 0) -> None:
        self.data = data
        self.view = memoryview(data)
        self.counts = [filled]


class _IncomingBody(ByteTransfer):
    """A body that is too large to be read ahead, while it arrives."""

    __slots__ = ("flags", "view")

    def __init__(self, size: int, flags: int) -> None:
        self.view = allocate(size)
        self.flags = flags
        super().__init__([self.view])


class _IncomingBuffers(ByteTransfer):
    """The buffers beside a body, while they arrive."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame, views: Sequence[memoryview]) -> None:
        self.frame = frame
        frame.buffers = views
        super().__init__(views)


class FrameReader:
    """Frames out of a byte stream. One thread at a time may use it.

    Args:
        receive_into: receives once into some views and appends the count to a list, or nothing
            when it has waited for a while in vain; raises `EOFError` at the end of the stream.
        max_frame_bytes: larger messages are refused before memory is taken.
        admit: called with the size of a message before memory is taken for its buffers; it may
            block (back-pressure).
        arrivals: where the stream keeps the descriptors that have come; without it, none may.
        inflates: whether the peer may be a stock one of rpyc's, which compresses; ours never do.
    """

    def __init__(
        self,
        receive_into: ReceiveInto,
        max_frame_bytes: int,
        admit: Callable[[int], None] | None = None,
        arrivals: ReceivedDescriptors | None = None,
        *,
        inflates: bool = False,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.bytes_received = 0
        self._receive_into = receive_into
        self._admit = admit
        self._arrivals = arrivals
        self._flags = {0, FLAG_BUFFERS}
        if inflates:
            self._flags.add(FLAG_COMPRESSED)
        if arrivals is not None:
            self._flags |= {FLAG_DESCRIPTORS, _ATTACHMENT_FLAGS}
        # read-ahead, first unconsumed byte in it, and what is being received or is ready
        self._at: tuple[_ReadAhead, int, Frame | _IncomingBody | _IncomingBuffers | None] = (
            _ReadAhead(bytearray(min(_INITIAL_BYTES, _READ_AHEAD))),
            0,
            None,
        )

    def peek(self) -> Frame:
        """The next message, waiting for it; the same one again until `advance` is called.

        Raises:
            EOFError: when the stream ended.
            LimitExceeded: when the peer announces more than `max_frame_bytes`.
            ProtocolError: when the bytes are not frames.
        """
        while True:
            phase = self._at[2]
            if type(phase) is Frame:
                return phase
            if phase is None:
                self._parse_frame()
            elif type(phase) is _IncomingBody:
                self._receive_body(phase)
            else:
                self._receive_buffers(phase)  # type: ignore[arg-type]

    @contextmanager
    def bounded_wait(self, is_readable: Callable[[], bool]) -> Iterator[None]:
        """Within it, `peek` gives up in the middle of a message; the next one goes on there.

        Args:
            is_readable: waits for bytes, and returns whether there are any.

        Raises:
            TimeoutError: from `peek`, when there are none.
        """
        receive = self._receive_into

        def receive_in_time(views: list[memoryview], counts: list[int]) -> None:
            if not is_readable():
                raise TimeoutError
            receive(views, counts)

        try:
            self._receive_into = receive_in_time
            yield
        finally:
            self._receive_into = receive

    @property
    def transfer(self) -> ByteTransfer | None:
        """What is coming in beside or as a large body, if anything is. From any thread."""
        phase = self._at[2]
        return phase if isinstance(phase, ByteTransfer) else None

    def advance(self) -> None:
        """Consumes the message that `peek` returned."""
        ahead, start, phase = self._at
        if type(phase) is Frame:
            bulk = sum(map(len, phase.buffers)) if phase.buffers else 0
            self.bytes_received += len(phase) + bulk
            if phase.announced and self._arrivals is not None:
                self._arrivals.drop(phase.descriptors)
            self._at = (ahead, start, None)

    def has_input(self) -> bool:
        """Whether a message, or bytes of one, have been received and not consumed."""
        ahead, start, phase = self._at
        return phase is not None or start < sum(ahead.counts)

    def _parse_frame(self) -> None:
        """One step from bytes towards a frame: fill, take a small one, or open a large one."""
        ahead, start, _ = self._at
        have = sum(ahead.counts) - start
        if have < HEADER.size:
            return self._fill(HEADER.size)
        length, flags = HEADER.unpack_from(ahead.data, start)
        if flags not in self._flags:
            raise ProtocolError(f"unknown frame flags {flags}: the peer does not speak jaxd.")
        if length > min(MAX_BODY_BYTES, self.max_frame_bytes):
            raise LimitExceeded(too_large(length, min(MAX_BODY_BYTES, self.max_frame_bytes)))
        needed = HEADER.size + length + 1
        if needed > _READ_AHEAD:
            return self._open_body(length + 1, flags)
        if have < needed:
            return self._fill(needed)
        frame = Frame(ahead.view[start + HEADER.size : start + needed - 1])
        if flags & _ATTACHMENT_FLAGS:
            return self._open_attachments(frame, flags, needed, 0)
        self._at = (ahead, start + needed, decompress(frame, self._admit) if flags else frame)
        return None

    def _open_body(self, size: int, flags: int) -> None:
        ahead, start, _ = self._at
        start += HEADER.size
        if self._admit is not None:
            self._admit(size)
        body = _IncomingBody(size, flags)
        copied = body.fill(ahead.view[start : sum(ahead.counts)])
        self._at = (ahead, start + copied, body)

    def _receive_body(self, body: _IncomingBody) -> None:
        self._receive(body)
        frame = Frame(body.view[:-1])
        if body.flags & _ATTACHMENT_FLAGS:
            return self._open_attachments(frame, body.flags, 0, len(frame))
        ahead, start, _ = self._at
        self._at = (ahead, start, decompress(frame, self._admit) if body.flags else frame)
        return None

    def _open_attachments(self, frame: Frame, flags: int, offset: int, asked: int) -> None:
        """Looks for what is beside the body, `offset` bytes behind `start`.

        `asked` bytes of the message have been admitted with its body.
        """
        if not flags & FLAG_DESCRIPTORS or self._arrivals is None:
            return self._open_bulk(frame, offset, asked)
        ahead, start, _ = self._at
        if sum(ahead.counts) - start < offset + 4:
            return self._fill(offset + 4)
        (frame.announced,) = struct.unpack_from("!L", ahead.data, start + offset)
        if frame.announced > MAX_DESCRIPTORS:
            raise LimitExceeded(too_many_descriptors(frame.announced))
        frame.descriptors = self._arrivals.first()
        if flags & FLAG_BUFFERS:
            return self._open_bulk(frame, offset + 4, asked)
        self._at = (ahead, start + offset + 4, frame)
        return None

    def _open_bulk(self, frame: Frame, offset: int, asked: int) -> None:
        """Reads the sizes that stand `offset` bytes behind `start`, and takes the memory."""
        ahead, start, _ = self._at
        have = sum(ahead.counts) - start
        if have < offset + 4:
            return self._fill(offset + 4)
        (count,) = struct.unpack_from("!L", ahead.data, start + offset)
        needed = offset + 4 + 8 * count
        if count > MAX_BUFFERS:
            raise LimitExceeded(too_many(count))
        if have < needed:
            return self._fill(needed)
        sizes = struct.unpack_from(f"!{count}Q", ahead.data, start + offset + 4)
        bulk = _IncomingBuffers(frame, self._allocate_buffers(sizes, len(frame), asked))
        copied = bulk.fill(ahead.view[start + needed : start + have])
        self._at = (ahead, start + needed + copied, bulk)
        return None

    def _allocate_buffers(
        self, sizes: Sequence[int], body_bytes: int, asked: int
    ) -> list[memoryview]:
        """The buffers; `asked` bytes of the message have been admitted with its body."""
        total = sum(sizes) + body_bytes
        if total > self.max_frame_bytes:
            raise LimitExceeded(too_large(total, self.max_frame_bytes))
        if self._admit is not None:
            self._admit(total - asked)
        return [allocate(size) for size in sizes]

    def _receive_buffers(self, bulk: _IncomingBuffers) -> None:
        self._receive(bulk)
        ahead, start, _ = self._at
        self._at = (ahead, start, bulk.frame)

    def _receive(self, transfer: ByteTransfer) -> None:
        while rest := transfer.rest():
            self._receive_into(rest, transfer.counts)

    def _fill(self, needed: int) -> None:
        """Receives once, with room for `needed` bytes behind `start`; grows for long tables."""
        ahead, start, phase = self._at
        end = sum(ahead.counts)
        if start == end:
            ahead = _ReadAhead(ahead.data)
            self._at = (ahead, 0, phase)
            start = end = 0
        if start + needed > len(ahead.data):
            rest = ahead.view[start:end]
            ahead = _ReadAhead(bytearray(max(_READ_AHEAD, needed)), len(rest))
            ahead.view[: len(rest)] = rest
            self._at = (ahead, 0, phase)
            end = len(rest)
        self._receive_into([ahead.view[end:]], ahead.counts)
