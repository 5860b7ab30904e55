r"""The frame: rpyc's own, with open files (flag 4) and raw buffers (flag 2) beside the body.

    !L length | !B flags | body (brine) | "\n"
        [ flag 4: !L descriptors ]
        [ flag 2: !L count | count x !Q size | bytes of each buffer ]

The descriptors themselves come as SCM_RIGHTS with the first byte of the frame, over a Unix socket
whose receiving end has said that it can take them. A stock rpyc peer reads and writes frames with
flags 0 and 1.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from jaxd_protocol.errors import LimitExceeded, ProtocolError

HEADER: Final = struct.Struct("!LB")
END: Final = b"\n"
FLAG_COMPRESSED: Final = 1
FLAG_BUFFERS: Final = 2
FLAG_DESCRIPTORS: Final = 4

DEFAULT_MAX_FRAME_BYTES: Final = 8 << 30
"""Largest message, body and buffers together, that is sent or accepted: 8 GiB."""

MAX_BODY_BYTES: Final = 1 << 30
"""Largest body: trees, code and small arrays travel in it, large arrays beside it."""

MAX_BUFFERS: Final = 1 << 16
MAX_DESCRIPTORS: Final = 64
"""Linux passes up to 253 at once; a receiver has to have room for them before they come."""

_CHUNK_BYTES: Final = 1 << 14

MAX_DECOMPRESSED_BYTES: Final = 1 << 28
"""A compressed frame of a stock rpyc peer may inflate to 256 MiB, no further."""


class Descriptors(list[int]):
    """Open files that came with a message, in its order.

    They are closed with the list. Whoever wants to keep one takes it out (`pop`), and closes it.
    """

    def __del__(self) -> None:
        while self:
            os.close(self.pop())


class Frame(bytes):
    """The body of one message, with what came beside it.

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
    """How many bytes it becomes: nothing in it says so, so it is inflated piece by piece."""
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
        """What is left, in as many pieces as one system call takes; empty when all is moved."""
        done = self.moved
        if done >= self.total:
            return []
        first = bisect_right(self._ends, done)
        pieces = list(self._pieces[first : first + _MAX_VECTORS])
        begun = done - (self._ends[first - 1] if first else 0)
        if begun:
            pieces[0] = pieces[0][begun:]
        return pieces

    def next(self, most: int) -> list[memoryview]:
        """As `rest`, but no more than so many bytes of it."""
        pieces = []
        for piece in self.rest():
            pieces.append(piece[:most])
            most -= len(piece)
            if most <= 0:
                break
        return pieces

    def fill(self, data: memoryview) -> int:
        """Copies the beginning of `data` into the pieces; returns how much found room."""
        taken = 0
        for piece in self._pieces:
            part = data[taken : taken + len(piece)]
            piece[: len(part)] = part
            taken += len(part)
        self.counts.append(taken)
        return taken
