r"""The frames of a connection, their reader and their writer.

A frame is rpyc's own, with open files (flag 4) and raw buffers (flag 2) beside the body.

    !L length | !B flags | body (brine) | "\n"
        [ flag 4: !L descriptors ]
        [ flag 2: !L count | count x !Q size | bytes of each buffer ]

The descriptors themselves come as SCM_RIGHTS with the first byte of the frame, over a Unix socket
whose receiving end has announced that it can take them. A stock rpyc peer reads and writes frames
with flags 0 and 1.

Writing is scatter-gather straight from the caller's memory. Reading and writing can be interrupted
anywhere, and continued by another thread: every byte count is appended to a list by the same C call
that moved the bytes (`BulkStream.receive_into`, `BulkStream.send_some`). The whole state of a
reader is one tuple, `FrameReader._at`, that each step replaces by a single assignment; until then
the step can be repeated.
"""

from __future__ import annotations

import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Final

from jaxd_protocol.base.buffers import allocate
from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire.stream import MAX_DESCRIPTORS, Descriptors, ReceivedDescriptors

HEADER: Final = struct.Struct("!LB")
END: Final = b"\n"
FLAG_COMPRESSED: Final = 1
FLAG_BUFFERS: Final = 2
FLAG_DESCRIPTORS: Final = 4

DEFAULT_MAX_FRAME_BYTES: Final = 8 << 30
"""Largest message, body and buffers together, that is sent or accepted: 8 GiB."""

MAX_BODY_BYTES: Final = 1 << 30
"""Largest body: it holds trees, code and small arrays; large arrays are beside it."""

MAX_BUFFERS: Final = 1 << 16

_CHUNK_BYTES: Final = 1 << 14

MAX_DECOMPRESSED_BYTES: Final = 1 << 28
"""A compressed frame of a stock rpyc peer may inflate to 256 MiB, no further."""


class Frame(bytes):
    """The body of one message, with the data beside it.

    Attributes:
        buffers: bulk data.
        descriptors: open files, none of them inheritable.
        announced: how many descriptors the sender has sent; more than there are when this process
            may open no more files, or when something in between does not pass them on.
    """

    buffers: Sequence[memoryview] = ()
    descriptors: Descriptors = Descriptors()
    announced: int = 0


def too_large(size: int, limit: int) -> str:
    """The text for a message of `size` bytes that is over `limit`."""
    return (
        f"a message of {size:,} bytes is over the limit of {limit:,} bytes. "
        "Send less at once, or start the server with a larger --max-frame-bytes."
    )


def too_many(count: int) -> str:
    """The text for a message with `count` buffers."""
    return (
        f"a message has {count:,} large arrays; {MAX_BUFFERS:,} is the limit. "
        "Join some of them, or send less at once."
    )


def too_many_descriptors(count: int) -> str:
    """The text for a message with `count` descriptors."""
    return (
        f"a message has {count:,} open files beside it; {MAX_DESCRIPTORS} is the limit. "
        "Send them with several messages."
    )


def decompress(frame: Frame, admit: Callable[[int], None] | None = None) -> Frame:
    """Decompresses the frame of a stock rpyc peer, but never beyond `MAX_DECOMPRESSED_BYTES`.

    Args:
        frame: a zlib stream.
        admit: called with how many bytes it becomes before memory is taken for them; may block.

    Raises:
        ProtocolError: when the bytes are not a zlib stream.
        LimitExceeded: when they would inflate further.
    """
    nbytes = _decompressed_bytes(frame)
    if admit is not None:
        admit(nbytes)
    return Frame(zlib.decompress(frame, bufsize=max(1, nbytes)))


def _decompressed_bytes(frame: Frame) -> int:
    """Its size once decompressed: no header holds it, so the frame is inflated piece by piece."""
    inflater, rest, size = zlib.decompressobj(), bytes(frame), 0
    while not inflater.eof:
        try:
            part = inflater.decompress(rest, _CHUNK_BYTES)
        except zlib.error as error:
            raise ProtocolError(f"a compressed frame cannot be read: {error}.") from error
        rest, size = inflater.unconsumed_tail, size + len(part)
        if size > MAX_DECOMPRESSED_BYTES:
            raise LimitExceeded(
                f"a compressed frame inflates beyond {MAX_DECOMPRESSED_BYTES:,} bytes."
            )
        if not (part or rest or inflater.eof):
            raise ProtocolError("a compressed frame cannot be read: its end is missing.")
    return size


_MAX_VECTORS: Final = 512
"""Pieces per system call: well below IOV_MAX, which is 1024 on Linux."""


class ByteTransfer:
    """Pieces of memory to send or fill, and how many of their bytes have been moved.

    Attributes:
        counts: the bytes of each system call; appended to by that call itself, so that an
            interrupt cannot fall in between.
        descriptors: open files that go out with the first byte.
    """

    __slots__ = ("_ends", "_pieces", "counts", "descriptors", "total")

    def __init__(self, pieces: Sequence[memoryview], descriptors: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))
        self.total = self._ends[-1] if pieces else 0
        self.counts: list[int] = []
        self.descriptors = descriptors

    @property
    def moved(self) -> int:
        """Bytes that have been moved so far."""
        return sum(self.counts)

    def rest(self) -> list[memoryview]:
        """The remaining pieces, as many as one system call takes; empty when all is moved.

        Where nothing is moved yet, pieces of no length are among them.
        """
        if not self.counts:  # nearly always, and then it is sent in one go
            return list(self._pieces[:_MAX_VECTORS]) if self.total else []
        done = sum(self.counts)
        first = bisect_right(self._ends, done)
        pieces = list(self._pieces[first : first + _MAX_VECTORS])
        begun = done - (self._ends[first - 1] if first else 0)
        if begun:
            pieces[0] = pieces[0][begun:]
        return pieces

    def next(self, most: int) -> list[memoryview]:
        """As `rest`, but at most this number of bytes."""
        pieces = []
        for piece in self.rest():
            pieces.append(piece[:most])
            most -= len(piece)
            if most <= 0:
                break
        return pieces

    def fill(self, data: memoryview) -> int:
        """Copies the beginning of `data` into the pieces; returns how many bytes fitted."""
        taken = 0
        for piece in self._pieces:
            part = data[taken : taken + len(piece)]
            piece[: len(part)] = part
            taken += len(part)
        self.counts.append(taken)
        return taken


_JOIN_LIMIT_BYTES: Final = 1 << 15
"""Bodies up to 32 kB are joined with their header; a copy is cheaper than a longer vector."""

_STEP_BYTES: Final = 1 << 20

_MOST_HELD: Final = 16
"""Messages that wait for the next one, at most."""

SendSome = Callable[[list[memoryview], list[int], Sequence[int]], None]


class FrameWriter:
    """Writes whole frames, one at a time; any thread may use it.

    Args:
        send_some: sends a part of the views, with some descriptors, and appends the count to a
            list; raises `EOFError` when the connection broke.
        max_frame_bytes: larger messages are refused before anything is sent.
        flush: sends what `send_some` counted and has not sent, when it was interrupted.

    Attributes:
        held: frames that were written with `more`, and go out with the next one.
    """

    def __init__(
        self, send_some: SendSome, max_frame_bytes: int, flush: Callable[[], None] = lambda: None
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.bytes_sent = 0
        self._send_some = send_some
        self._flush = flush
        self._lock = threading.Lock()  # guards the socket's sending side, `_open` and `held`
        self._open: ByteTransfer | None = None  # what is going out
        self.held: list[memoryview] = []

    @property
    def transfer(self) -> ByteTransfer | None:
        """The transfer that is being sent, if any. Thread-safe."""
        return self._open

    def write(
        self,
        body: bytes,
        buffers: Sequence[memoryview] = (),
        descriptors: Sequence[int] = (),
        *,
        more: bool = False,
    ) -> None:
        """Sends one message.

        When it returns, `buffers` may be overwritten and `descriptors` closed.

        Args:
            body: of the message.
            buffers: bulk data beside it.
            descriptors: open files.
            more: whether the caller is about to write another one, or to call `send_held`: one
                system call then sends several messages. Only small ones wait, and only a few.

        Raises:
            EOFError: when the connection broke.
            InternalError: when there are descriptors and they cannot travel.
            LimitExceeded: when the message is over the limit.

        Nothing was sent then, unless the connection broke.

        Interrupted by anything else, the message goes out whole or not at all.
        """
        if not buffers and not descriptors and len(body) < _JOIN_LIMIT_BYTES:
            frame = memoryview(HEADER.pack(len(body), 0) + body + END)
            if more and len(self.held) < _MOST_HELD:
                with self._lock:
                    return self.held.append(frame)
            return self._write([frame])
        total = len(body) + sum(map(len, buffers))
        if total > self.max_frame_bytes or len(body) > MAX_BODY_BYTES:
            limit = self.max_frame_bytes if total > self.max_frame_bytes else MAX_BODY_BYTES
            raise LimitExceeded(too_large(total, limit))
        if len(buffers) > MAX_BUFFERS:
            raise LimitExceeded(too_many(len(buffers)))
        if len(descriptors) > MAX_DESCRIPTORS:
            raise LimitExceeded(too_many_descriptors(len(descriptors)))
        parts = _frame_parts(body, buffers, len(descriptors))
        return self._write([memoryview(part) for part in parts if len(part)], descriptors)

    def send_held(self) -> None:
        """Sends what was written with `more`; raises `EOFError` when the connection broke."""
        if self.held:
            self._write([])

    def _write(self, views: list[memoryview], descriptors: Sequence[int] = ()) -> None:
        transfer = ByteTransfer(views, descriptors)
        try:
            with self._lock:  # no bytecode, so no interrupt, between taking it and the block
                self._finish()  # what an interrupted thread left comes first
                if descriptors and self.held:  # they go out with the first byte of their message
                    self._send(ByteTransfer(self.held))
                elif self.held:
                    transfer = ByteTransfer([*self.held, *views])
                self._send(transfer)
        except EOFError:
            raise
        except BaseException:
            if transfer.moved and self._open is transfer:
                # its rest has to go out before anything else, also when nothing else is sent;
                # the interrupted thread should not have to wait for that
                later = threading.Thread(target=self._finish_later, name="jaxd-rest", daemon=True)
                try:
                    later.start()
                except RuntimeError:  # the system has no more threads
                    self._finish_later()
            raise

    def _send(self, transfer: ByteTransfer) -> None:
        """Sends frames, those that are held among them.

        Interrupted before the first byte, what is new is forgotten, and they are held again.
        """
        held = self.held
        try:
            self._open, self.held = transfer, []
            self._finish()
        except BaseException:
            if not transfer.moved:
                self._open, self.held = None, held
            raise

    def _finish(self) -> None:
        """Sends what is left of the open frame. The lock is held."""
        transfer = self._open
        if transfer is None:
            return
        # a system call may return only when all is sent: smaller steps report progress
        while (
            rest := transfer.rest() if transfer.total <= _STEP_BYTES else transfer.next(_STEP_BYTES)
        ):
            self._send_some(rest, transfer.counts, () if transfer.counts else transfer.descriptors)
        self._flush()
        self.bytes_sent += transfer.total
        self._open = None

    def _finish_later(self) -> None:
        with self._lock, suppress(EOFError):  # the reading thread will see the end as well
            self._finish()


def _frame_parts(
    body: bytes, buffers: Sequence[memoryview], descriptors: int
) -> list[bytes | memoryview]:
    flags = (FLAG_BUFFERS if buffers else 0) | (FLAG_DESCRIPTORS if descriptors else 0)
    head = HEADER.pack(len(body), flags)
    tail = END
    if descriptors:
        tail += struct.pack("!L", descriptors)
    if buffers:
        sizes = map(len, buffers)
        tail += struct.pack(f"!L{len(buffers)}Q", len(buffers), *sizes)
    small = len(body) < _JOIN_LIMIT_BYTES
    return [head + body + tail, *buffers] if small else [head, body, tail, *buffers]


_READ_AHEAD: Final = 1 << 16
_INITIAL_BYTES: Final = 1 << 12
"""Enough for a connection with little traffic; there may be thousands of these."""

_ATTACHMENT_FLAGS: Final = FLAG_BUFFERS | FLAG_DESCRIPTORS

ReceiveInto = Callable[[list[memoryview], list[int]], None]


class _ReadAhead:
    """Bytes that were received before they were requested: the first `sum(counts)` of `view`."""

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
        """Within it, `peek` may end in the middle of a message; the next one continues there.

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
        """The large body, or the buffers, being received, if any. Thread-safe."""
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

    def has_message(self) -> bool:
        """Whether `peek` would return a small message without receiving anything."""
        ahead, start, phase = self._at
        have = sum(ahead.counts) - start
        if phase is not None or have < HEADER.size:
            return type(phase) is Frame
        length, flags = HEADER.unpack_from(ahead.data, start)
        return bool(not flags and have > HEADER.size + length)

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

    def _open_attachments(self, frame: Frame, flags: int, offset: int, admitted: int) -> None:
        """Reads what is beside the body, `offset` bytes behind `start`.

        `admitted` bytes of the message have been admitted with its body.
        """
        if not flags & FLAG_DESCRIPTORS or self._arrivals is None:
            return self._open_bulk(frame, offset, admitted)
        ahead, start, _ = self._at
        if sum(ahead.counts) - start < offset + 4:
            return self._fill(offset + 4)
        (frame.announced,) = struct.unpack_from("!L", ahead.data, start + offset)
        if frame.announced > MAX_DESCRIPTORS:
            raise LimitExceeded(too_many_descriptors(frame.announced))
        frame.descriptors = self._arrivals.first()
        if flags & FLAG_BUFFERS:
            return self._open_bulk(frame, offset + 4, admitted)
        self._at = (ahead, start + offset + 4, frame)
        return None

    def _open_bulk(self, frame: Frame, offset: int, admitted: int) -> None:
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
        total = sum(sizes) + len(frame)
        if total > self.max_frame_bytes:
            raise LimitExceeded(too_large(total, self.max_frame_bytes))
        if self._admit is not None:
            self._admit(total - admitted)
        bulk = _IncomingBuffers(frame, [allocate(size) for size in sizes])
        copied = bulk.fill(ahead.view[start + needed : start + have])
        self._at = (ahead, start + needed + copied, bulk)
        return None

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
