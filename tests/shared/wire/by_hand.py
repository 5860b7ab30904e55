"""Frames written from the description of the protocol alone, and sockets to send them over."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxd_protocol.errors import RemoteError
from jaxd_protocol.wire import BulkConnection, BulkStream, Frame
from jaxd_protocol.wire.frames import FrameReader
from tests.certificates import tls_streams

Sent = tuple[bytes, tuple[bytes, ...]]
"""A body and the buffers beside it."""


def frame_bytes(
    body: bytes,
    buffers: Sequence[bytes] = (),
    *,
    compressed: bool = False,
    descriptors: int = 0,
) -> bytes:
    """One frame as it stands on the wire."""
    flags = 2 * bool(buffers) + 4 * bool(descriptors) + compressed
    data = zlib.compress(body, 1) if compressed else body
    frame = struct.pack("!LB", len(data), flags) + data + b"\n"
    if descriptors:
        frame += struct.pack("!L", descriptors)
    if buffers:
        frame += struct.pack(f"!L{len(buffers)}Q", len(buffers), *map(len, buffers))
    return frame + b"".join(buffers)


@contextmanager
def open_files(count: int) -> Iterator[list[int]]:
    """Descriptors of different files; the reading end of a pipe each."""
    pipes = [os.pipe() for _ in range(count)]
    try:
        yield [reading for reading, _ in pipes]
    finally:
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])


def file_of(descriptor: int) -> int:
    """What is the same for all descriptors of one file."""
    return os.fstat(descriptor).st_ino


def count_open() -> int:
    """How many descriptors this process has open, after those that nobody holds were closed."""
    gc.collect()
    return len(os.listdir("/dev/fd"))


def send_with(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """All of the bytes; the descriptors with the first of them."""
    sent = socket.send_fds(sock, [data], descriptors) if descriptors else 0
    sock.sendall(data[sent:])


@contextmanager
def streams(*, tls: bool = False) -> Iterator[tuple[BulkStream, BulkStream]]:
    """Two connected streams; the first belongs to the test."""
    pair = socket.socketpair()
    ours, theirs = tls_streams(pair) if tls else map(BulkStream, pair)
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


@contextmanager
def arriving(data: bytes) -> Iterator[BulkStream]:
    """A stream on which exactly these bytes arrive, and then the end."""
    with streams() as (ours, theirs):

        def send() -> None:
            theirs.sock.sendall(data)
            theirs.sock.shutdown(socket.SHUT_WR)

        if len(data) <= 1 << 14:  # fits into any socket's buffer
            send()
            yield ours
            return
        sender = threading.Thread(target=send)
        sender.start()
        yield ours
        sender.join()


class DispatchingConnection(BulkConnection):
    """An end that hands each message to a method of its own."""

    def dispatch(self, frame: Frame) -> None:
        """Reads a message, and hands it to `on_request` or `on_reply`."""
        message = self.read_message(frame)
        if message is not None:
            verb, seq, value = message
            if verb is None:
                self.on_reply(seq, value, isinstance(value, RemoteError), frame)
            else:
                self.on_request(seq, verb, value, frame)

    def on_request(self, seq: int, verb: str, args: tuple[Any, ...], frame: Frame) -> None:
        """The peer calls `verb`; what came beside the call is in `frame`."""
        raise NotImplementedError

    def on_reply(self, seq: int, value: Any, failed: bool, frame: Frame) -> None:
        """The peer answers our request `seq`."""
        raise NotImplementedError


def frames_of(reader: FrameReader) -> Iterator[Frame]:
    """Every frame up to the end of the stream; an interrupted reading is taken up again."""
    last = None
    while True:
        try:
            frame = reader.peek()
            if frame is not last:  # else `advance` was interrupted
                yield frame
            last = frame
            reader.advance()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
