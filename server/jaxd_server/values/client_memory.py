"""Memory of a client on this machine, mapped here: arguments come from it, results go into it."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any, Final

from jaxd_protocol.base import shared_memory
from jaxd_protocol.base.buffers import address_of
from jaxd_protocol.errors import LimitExceeded, ProtocolError

MAX_BLOCKS: Final = 512
"""Of one connection; a mapping may keep a file open."""


class ClientMemory:
    """The blocks that one connection has announced.

    The reading thread adds and removes; views may be asked for by any thread. What was removed
    stays mapped while a view of it, or anything made of one, exists.

    Args:
        limit_bytes: of all that is mapped at once.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: dict[int, memoryview] = {}
        # of everything that is still mapped, by a number of its own: first address, and the one
        # behind the last. Addresses are used again, perhaps before the old entry is gone
        self._ranges: dict[int, tuple[int, int]] = {}
        self._numbers = itertools.count()

    def add(self, number: int, nbytes: int, descriptor: int) -> None:
        """Maps a block, and closes its descriptor whatever happens.

        A number that is known already stays what it is: two threads of a client may have
        announced the same block.

        Raises:
            LimitExceeded: when there are too many blocks, or too many bytes in them.
            ProtocolError: when the memory could be taken away again, or cannot be mapped.
        """
        try:
            if number in self._blocks:
                return
            self._check_room(nbytes)
            shared_memory.check_sealed(descriptor, nbytes)
            view = shared_memory.map_file(descriptor, nbytes, writable=True)
        except (OSError, ValueError) as error:
            if isinstance(error, LimitExceeded | ProtocolError):
                raise
            raise ProtocolError(f"the client's memory cannot be mapped: {error}.") from error
        finally:
            os.close(descriptor)
        key = next(self._numbers)
        start = address_of(view)
        self._ranges[key] = (start, start + len(view))
        mapping: Any = view.obj
        weakref.finalize(mapping, self._ranges.pop, key, None).atexit = False
        self._blocks[number] = view

    def _check_room(self, nbytes: int) -> None:
        ranges = list(self._ranges.values())
        if len(ranges) >= MAX_BLOCKS:
            raise LimitExceeded(
                f"a client shares more than {MAX_BLOCKS:,} blocks of memory. Drop arrays of "
                "`jaxd.empty` and `jaxd.shared_copy` that are not needed any more."
            )
        total = nbytes + sum(end - start for start, end in ranges)
        if total > self._limit_bytes:
            raise LimitExceeded(
                f"a client shares {total:,} bytes of memory; {self._limit_bytes:,} is the limit. "
                "Drop arrays of `jaxd.empty` and `jaxd.shared_copy` that are not needed any more."
            )

    def view(self, number: int, offset: int, nbytes: int) -> memoryview:
        """Bytes of a block, to be read.

        Raises:
            ProtocolError: when the block is not known, or has no such bytes.
        """
        return self.writable_view(number, offset, nbytes).toreadonly()

    def writable_view(self, number: int, offset: int, nbytes: int) -> memoryview:
        """Bytes of a block, to be written; raises as `view` does."""
        block = self._blocks.get(number)
        if block is None:
            raise ProtocolError(f"block {number} of the client's memory was not announced.")
        if offset < 0 or nbytes < 0 or offset + nbytes > len(block):
            raise ProtocolError(
                f"bytes {offset:,} to {offset + nbytes:,} are not in block {number}, which has "
                f"{len(block):,}."
            )
        return block[offset : offset + nbytes]

    def remove(self, number: int) -> None:
        """Forgets a block; one that is not known is none."""
        self._blocks.pop(number, None)

    def close(self) -> None:
        """Forgets all blocks."""
        self._blocks.clear()

    def holds(self, address: int) -> bool:
        """Whether memory of this process belongs to the client: of a removed block as well."""
        ranges = list(self._ranges.values())
        return any(start <= address < end for start, end in ranges)
