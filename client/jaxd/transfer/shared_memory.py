"""Shared memory blocks of this process, which a server on the same machine can map.

A block is one file in memory, mapped here once and used again and again, because touching new
memory takes longer than copying. The server is given the file's descriptor once for each
connection; after that, a number and an offset stand for the data.

Users of a block hold a *share* of it: a call until its reply has arrived, an array as long as it
lives. A block without shares is reused by the next call. It is returned to the system instead when
another process may still read or write it: a child that was forked meanwhile, or a server that has
not replied yet.

What is kept for long, so that calls can be made again, fills one large block after the other, and
data that has not changed since it was copied there is not copied again.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Final, NamedTuple

from jaxd_protocol.base import shared_memory
from jaxd_protocol.base.buffers import ALIGNMENT, address_of
from jaxd_protocol.base.process import (
    Lazy,
    memory_bytes,
    notify_before_forks,
    reset_after_fork,
    usable_processors,
)

MIN_BLOCK_BYTES: Final = 1 << 18
"""Sizes are powers of two from here up."""

MAX_BLOCKS: Final = 256
"""Each keeps one or two files open."""

MIN_KEPT_BYTES: Final = 1 << 25
"""Smaller blocks are not held for long: each has open files, and the next call needs another one.
Smaller pieces of data that are to be held fill blocks of this size."""

_MAX_KNOWN_COPIES: Final = 256
"""The arrays that were copied last are looked at whether they have changed."""

_COPY_PART_BYTES: Final = 4 << 20
"""Takes several times the 0.1 ms for which a thread is started and waited for."""

_MOST_COPY_THREADS: Final = 8
"""Beyond that the memory is the limit: 28.9 GB/s on 16 processors, where one thread copies 10.6."""

IDLE_S: Final = 60.0
"""A block that has been unused for so long is given back to the system by the next call."""


class SharedBlock:
    """A block of shared memory with a reference count. Made by the pool.

    Attributes:
        number: its number on every connection of this process.
        nbytes: its size.
        descriptor: of its file; open while the block exists.
        view: all of it, writable.
        address: where it begins in this process.
        is_forked: whether a child process maps it as well.
        is_awaited: whether the server may still write into it.
        lease: how often it was leased: its content is another one each time.
    """

    def __init__(self, pool: BlockPool, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.shares = 0  # guarded by the pool's lock, as is the next one
        self.idle_since = 0.0  # of time.monotonic()
        self.is_forked = False
        self.is_awaited = False
        self.lease = 0
        self._pool = pool
        self._written = 0  # bytes from the beginning that this process has written
        self.descriptor = -1
        self.descriptor = shared_memory.create_sealed(nbytes)
        self.view = shared_memory.map_file(self.descriptor, nbytes, writable=True)
        self._bytes = sys.modules["numpy"].frombuffer(self.view, "u1")
        self.address = address_of(self.view)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def retain(self) -> None:
        """Adds a share; there must be one already."""
        self._pool.share(self)

    def release(self) -> None:
        """Releases one share. Never blocks, so it may be called at any time."""
        self._pool.release_share(self)

    def may_stay(self) -> bool:
        """Whether it may be held for long: it is large, and the pool has as much beside it."""
        return self.nbytes >= MIN_KEPT_BYTES and self._pool.is_half_free()

    def write(self, offset: int, data: memoryview) -> None:
        """Copies bytes into the block; others may run meanwhile.

        Raises:
            OSError: when there is not enough memory.
        """
        warm = min(max(self._written - offset, 0), len(data))
        source = sys.modules["numpy"].frombuffer(data[:warm], "u1")
        _copy(self._bytes[offset : offset + warm], source)
        if warm < len(data):
            shared_memory.write_fresh(self.descriptor, self.view, offset + warm, data[warm:])
            if offset < self._written + ALIGNMENT:  # else what is before it is being written
                self._written = max(self._written, offset + len(data))


def _copy(target: Any, source: Any) -> None:
    """Copies an array of bytes; a large one in parts, for one core does not fill the memory bus."""
    numpy = sys.modules["numpy"]
    threads = min(_MOST_COPY_THREADS, usable_processors() // 2, len(source) // _COPY_PART_BYTES)
    if threads < 2:
        numpy.copyto(target, source)
        return
    parts = zip(numpy.array_split(target, threads), numpy.array_split(source, threads), strict=True)
    first, *others = parts
    started = []
    for part in others:
        thread = threading.Thread(target=numpy.copyto, args=part, daemon=True)
        try:
            thread.start()
            started.append(thread)
        except RuntimeError:  # the system has no more threads
            numpy.copyto(*part)
    numpy.copyto(*first)
    for thread in started:
        thread.join()


BlockOffset = tuple[SharedBlock, int]
"""A block and an offset in it. Who receives one holds a share of the block."""


class _Copy(NamedTuple):
    """Where an array was copied to; of no use once the block is gone, or was leased again."""

    block: weakref.ref[SharedBlock]
    lease: int
    offset: int


class _PeerBlocks:
    """The blocks that the peer of one connection has mapped."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.retired: list[int] = []


class BlockPool:
    """The blocks of this process. Thread-safe; the child of a fork begins with none.

    Args:
        limit_bytes: of all blocks together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._numbers = itertools.count(1)
        self.after_fork()
        reset_after_fork(self)
        notify_before_forks(self)

    def after_fork(self) -> None:
        """Forgets all blocks: in the child of a fork they are the parent's."""
        self._lock = threading.Lock()  # guards all that follows but _given_back
        self._blocks: dict[int, SharedBlock] = {}  # by address
        self._addresses: list[int] = []  # sorted
        self._idle: list[SharedBlock] = []  # those without shares, the longest unused first
        self._peers: weakref.WeakKeyDictionary[object, _PeerBlocks] = weakref.WeakKeyDictionary()
        self._released: deque[SharedBlock] = deque()  # one entry for each share
        self._filling: SharedBlock | None = None  # with what is held for long
        self._filled = 0  # bytes of it
        self._copies: dict[tuple[int, int], _Copy] = {}  # by address and size, the oldest first

    def on_fork(self) -> None:
        """Marks blocks in use: a forked child maps them, and must never see other data there."""
        # without the lock, which this very thread may hold; list() is one step
        for block in list(self._blocks.values()):
            if block.shares:
                block.is_forked = True

    # leasing ----------------------------------------------------------------------------------

    def lease(self, nbytes: int, shares: int = 1) -> SharedBlock | None:
        """A block of at least `nbytes` bytes, whose content is arbitrary, with some shares.

        None when that would be over the limit, when there are no such blocks on this system, or
        when numpy is not loaded. The data then has to travel.
        """
        size = max(MIN_BLOCK_BYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._reclaim()
            return self._lease(size, shares)

    def copy_in(
        self, buffers: Sequence[memoryview], *, lasting: bool = False
    ) -> list[BlockOffset] | None:
        """Where copies of some contiguous bytes lie, each with a share; None as for `lease`.

        Args:
            buffers: the bytes.
            lasting: whether the copies may be held for long, so that `find_copy` is of use.
        """
        if not buffers:
            return []
        *offsets, total = aligned_offsets(map(len, buffers))
        block, start = self._append(total, len(buffers)) if lasting else (None, 0)
        block = block or self.lease(total, len(buffers))
        if block is None:
            return None
        places = [(block, start + offset) for offset in offsets]
        with suppress(OSError), ExitStack() as undo:
            undo.callback(self.release, places)
            for (_, offset), buffer in zip(places, buffers, strict=True):
                block.write(offset, buffer)
            if lasting:
                self._note_copies(places, buffers)
            undo.pop_all()
            return places
        return None

    def find_copy(self, data: memoryview) -> BlockOffset | None:
        """Where a lasting copy of these bytes lies that is still what they are, with a share.

        They are compared up to the first byte that has changed.
        """
        if not self._copies:
            return None
        address = address_of(data)
        with ExitStack() as undo:
            with self._lock:
                self._reclaim()
                copy = self._copies.get((address, len(data)))
                block = None if copy is None else copy.block()
                if copy is None or block is None or block.lease != copy.lease:
                    return None
                if block in self._idle:
                    self._idle.remove(block)
                elif not block.shares:
                    return None  # it was given back to the system
                block.shares += 1
                undo.callback(block.release)
            if not _are_equal(address, block.address + copy.offset, len(data)):
                return None
            undo.pop_all()
            return block, copy.offset

    def _note_copies(self, places: Sequence[BlockOffset], buffers: Sequence[memoryview]) -> None:
        with self._lock:
            for (block, offset), data in zip(places, buffers, strict=True):
                key = address_of(data), len(data)
                self._copies.pop(key, None)
                self._copies[key] = _Copy(weakref.ref(block), block.lease, offset)
            while len(self._copies) > _MAX_KNOWN_COPIES:
                del self._copies[next(iter(self._copies))]

    def _append(self, nbytes: int, shares: int) -> tuple[SharedBlock | None, int]:
        """Room in the block that is being filled, or in the next one; None: there is none for that.

        It is filled from its beginning again as soon as nobody holds any of it.
        """
        if nbytes >= MIN_KEPT_BYTES:
            return None, 0
        with self._lock:
            self._reclaim()
            block = self._filling
            is_usable = block is not None and block.shares and not block.is_forked
            if block is None or not is_usable or self._filled + nbytes > block.nbytes:
                block, self._filled = self._lease(MIN_KEPT_BYTES, 0), 0
                self._filling = block
            if block is None:
                return None, 0
            offset, self._filled = self._filled, self._filled + nbytes
            block.shares += shares
            return block, offset

    def release(self, places: Iterable[BlockOffset]) -> None:
        """Releases the share that each of the places holds."""
        for block, _ in places:
            block.release()

    def find(self, address: int, nbytes: int) -> BlockOffset | None:
        """Where memory of this process lies, with a share; None when it is in no block."""
        if not self._addresses:
            return None
        with self._lock:
            before = bisect_right(self._addresses, address) - 1
            if before < 0:
                return None
            block = self._blocks[self._addresses[before]]
            offset = address - block.address
            if offset + nbytes > block.nbytes or not block.shares:
                return None
            block.shares += 1
            return block, offset

    def is_half_free(self) -> bool:
        """Whether as much could be leased as is, and as many blocks."""
        with self._lock:
            self._reclaim()
            leased = [block.nbytes for block in self._blocks.values() if block.shares]
            return 2 * sum(leased) <= self.limit_bytes and 2 * len(leased) <= MAX_BLOCKS

    def share(self, block: SharedBlock) -> None:
        """Takes one more share of a block that is held already."""
        with self._lock:
            block.shares += 1

    def release_share(self, block: SharedBlock) -> None:
        """See `SharedBlock.release`."""
        # garbage collection may call this while this very thread holds the lock
        self._released.append(block)
        # an interrupt may come anywhere, which only `with` survives
        if not self._lock.locked():
            with self._lock:
                self._reclaim()

    # announcing -------------------------------------------------------------------------------

    def unannounced(self, connection: object, blocks: Iterable[SharedBlock]) -> list[SharedBlock]:
        """Those of the blocks, each once, whose descriptors the connection has to send first."""
        with self._lock:
            known = self._peers.setdefault(connection, _PeerBlocks()).numbers
            return [b for b in {b.number: b for b in blocks}.values() if b.number not in known]

    def announced(self, connection: object, blocks: Iterable[SharedBlock]) -> list[int]:
        """Notes that the connection has sent the descriptors of these blocks.

        Returns:
            Numbers of blocks that are gone, which the server can unmap; each is returned once.
        """
        with self._lock:
            peer = self._peers.setdefault(connection, _PeerBlocks())
            peer.numbers.update(b.number for b in blocks)
            retired, peer.retired = peer.retired, []
            return retired

    # the lock is held -------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Processes released shares, and frees blocks that were idle for too long."""
        now = time.monotonic()
        while self._released:
            block = self._released.popleft()
            block.shares -= 1
            if block.shares or self._blocks.get(block.address) is not block:  # a parent's
                continue
            if block.is_forked or block.is_awaited:
                self._retire(block)
            else:
                block.idle_since = now
                self._idle.append(block)
        while self._idle and now - self._idle[0].idle_since > IDLE_S:
            self._retire(self._idle.pop(0))

    def _lease(self, size: int, shares: int) -> SharedBlock | None:
        """A block of exactly this size; None when there is no room for it."""
        block = self._reuse(size) or self._allocate(size)
        if block is not None:
            if block is self._filling:
                self._filling = None
            block.shares = shares
            block.lease += 1
        return block

    def _reuse(self, size: int) -> SharedBlock | None:
        """The block of this size that was used last: it may still be in the processor's cache."""
        block = next((block for block in reversed(self._idle) if block.nbytes == size), None)
        if block is not None:
            self._idle.remove(block)
        return block

    def _allocate(self, size: int) -> SharedBlock | None:
        free = self.limit_bytes - sum(b.nbytes for b in self._blocks.values())
        if free + sum(b.nbytes for b in self._idle) < size or not _is_supported():
            return None
        while self._idle and (free < size or len(self._blocks) >= MAX_BLOCKS):
            free += self._idle[0].nbytes
            self._retire(self._idle.pop(0))
        if len(self._blocks) >= MAX_BLOCKS:
            return None
        try:
            block = SharedBlock(self, next(self._numbers), size)
        except OSError:  # no more files or memory
            return None
        self._blocks[block.address] = block
        insort(self._addresses, block.address)
        return block

    def _retire(self, block: SharedBlock) -> None:
        if block is self._filling:
            self._filling = None
        del self._blocks[block.address]
        self._addresses.remove(block.address)
        for peer in self._peers.values():
            if block.number in peer.numbers:
                peer.numbers.remove(block.number)
                peer.retired.append(block.number)


def _are_equal(address: int, other: int, nbytes: int) -> bool:
    """Whether memory of this process is the same; other threads run meanwhile."""
    return int(_memcmp()(address, other, nbytes)) == 0


@cache
def _memcmp() -> Any:
    import ctypes  # few processes compare any

    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    return compare


def _is_supported() -> bool:
    numpy: Any = sys.modules.get("numpy")
    return hasattr(numpy, "frombuffer") and shared_memory.available()


def aligned_offsets(sizes: Iterable[int]) -> list[int]:
    """The aligned offsets of consecutive pieces of these sizes; then the total."""
    ends = itertools.accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0)
    return list(ends)


shared_pool: Final = Lazy(lambda: BlockPool(memory_bytes() // 8))
"""The blocks of this process: an eighth of the machine's memory at most."""
