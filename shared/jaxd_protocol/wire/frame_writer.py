"""Frames to bytes: scatter-gather straight from the caller's memory, safe to interrupt."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final

from jaxd_protocol.errors import LimitExceeded
from jaxd_protocol.wire.frames import (
    END,
    FLAG_BUFFERS,
    FLAG_DESCRIPTORS,
    HEADER,
    MAX_BODY_BYTES,
    MAX_BUFFERS,
    MAX_DESCRIPTORS,
    ByteTransfer,
    too_large,
    too_many,
    too_many_descriptors,
)

_JOIN_LIMIT_BYTES: Final = 1 << 15
"""Bodies up to 32 kB are joined with their header; a copy is cheaper than a longer vector."""

_STEP_BYTES: Final = 1 << 20

SendSome = Callable[[list[memoryview], list[int], Sequence[int]], None]


class FrameWriter:
    """Writes whole frames, one at a time; any thread may use it.

    Args:
        send_some: sends a part of the views, with some descriptors, and appends the count to a
            list; raises `EOFError` when the connection broke.
        max_frame_bytes: larger messages are refused before anything is sent.
        flush: sends what `send_some` counted and has not sent, when it was interrupted.
    """

    def __init__(
        self, send_some: SendSome, max_frame_bytes: int, flush: Callable[[], None] = lambda: None
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.bytes_sent = 0
        self._send_some = send_some
        self._flush = flush
        self._lock = threading.Lock()  # guards the socket's sending side and `_open`
        self._open: ByteTransfer | None = None  # the frame that is going out

    @property
    def transfer(self) -> ByteTransfer | None:
        """What is going out, if anything is. From any thread."""
        return self._open

    def write(
        self, body: bytes, buffers: Sequence[memoryview] = (), descriptors: Sequence[int] = ()
    ) -> None:
        """Sends one message.

        When it returns, `buffers` may be overwritten and `descriptors` closed.

        Raises:
            EOFError: when the connection broke.
            InternalError: when there are descriptors and they cannot travel.
            LimitExceeded: when the message is over the limit.

        Nothing was sent then, unless the connection broke.

        Interrupted by anything else, the message goes out whole or not at all.
        """
        if not buffers and not descriptors and len(body) < _JOIN_LIMIT_BYTES:
            return self._write([memoryview(HEADER.pack(len(body), 0) + body + END)])
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

    def _write(self, views: list[memoryview], descriptors: Sequence[int] = ()) -> None:
        transfer = ByteTransfer(views, descriptors)
        try:
            with self._lock:  # no bytecode, so no interrupt, between taking it and the block
                self._finish()  # what an interrupted thread left comes first
                self._send(transfer)
        except EOFError:
            raise
        except BaseException:
            if transfer.moved and self._open is transfer:
                # its rest has to go out before anything else, also when nothing else is sent;
                # the interrupted thread should not have to wait for that
                threading.Thread(target=self._finish_later, name="jaxd-rest", daemon=True).start()
            raise

    def _send(self, transfer: ByteTransfer) -> None:
        """Opens a frame and sends it. Interrupted before its first byte, it is forgotten."""
        try:
            self._open = transfer
            self._finish()
        except BaseException:
            if not transfer.moved:
                self._open = None
            raise

    def _finish(self) -> None:
        """Sends what is left of the open frame. The lock is held."""
        transfer = self._open
        if transfer is None:
            return
        # a system call may return only when all is sent: smaller steps show progress
        while (
            rest := transfer.rest() if transfer.total <= _STEP_BYTES else transfer.next(_STEP_BYTES)
        ):
            self._send_some(rest, transfer.counts, () if transfer.counts else transfer.descriptors)
        self._flush()
        self.bytes_sent += transfer.total
        self._open = None

    def _finish_later(self) -> None:
        with self._lock, contextlib.suppress(EOFError):  # whoever reads will see the end as well
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
