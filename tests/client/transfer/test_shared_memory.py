"""Blocks are shared out, found again, told to the server, and given back."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd.transfer import shared_memory as module
from jaxd.transfer.shared_memory import IDLE_S, MIN_BLOCK_BYTES, BlockPool, SharedBlock
from jaxd_protocol.base import shared_memory

pytestmark = pytest.mark.skipif(
    not shared_memory.available(), reason="this system has no files in memory"
)

SMALL = MIN_BLOCK_BYTES
LIMIT = 1 << 24


class Connection:
    """Only its identity matters."""


def left() -> tuple[int, int]:
    """Open files, and blocks that are mapped, after what nobody holds was let go."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:jaxd")
    return len(os.listdir("/dev/fd")), mapped


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = left()
    yield
    assert left() == before


@pytest.fixture
def pool() -> Iterator[BlockPool]:
    pool = BlockPool(LIMIT)
    yield pool
    pool.after_fork()  # as when nobody holds the pool any more, which pytest does


def leased(pool: BlockPool, nbytes: int = SMALL) -> SharedBlock:
    block = pool.lease(nbytes)
    assert block is not None
    return block


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, "u1").ctypes.data)


def numbered(*sizes: int) -> list[memoryview]:
    """Bytes of these sizes, no two of them alike."""
    return [memoryview(bytes([n]) * size) for n, size in enumerate(sizes, 1)]


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0, SMALL), (1, SMALL), (SMALL, SMALL), (SMALL + 1, 2 * SMALL), (3_000_000, 1 << 22)],
)
def test_a_block_has_room_for_what_was_asked_for(pool: BlockPool, asked: int, given: int) -> None:
    """Sizes are powers of two, so that blocks fit more than one call."""
    block = leased(pool, asked)
    assert block.nbytes == len(block.view) == given
    shared_memory.check_sealed(block.descriptor, given)


def test_a_block_is_used_for_the_next_call(pool: BlockPool) -> None:
    """The one that was used last, of the same size; never one that is in use."""
    first, second, other = leased(pool), leased(pool), leased(pool, 2 * SMALL)
    assert len({first.number, second.number, other.number}) == 3
    for block in (first, second, other):
        block.release()
    assert leased(pool) is second
    assert leased(pool) is first
    assert leased(pool) not in (first, second, other)


def test_a_block_is_in_use_until_its_last_share_is_given_back(pool: BlockPool) -> None:
    """A call has one, and each array in it."""
    block = pool.lease(SMALL, 2)
    assert block is not None
    pool.share(block)
    for _ in range(2):
        block.release()
        assert leased(pool) is not block
    block.release()
    assert leased(pool) is block


def test_beyond_the_limit_there_is_no_block() -> None:
    """The data travels then, until something is given back."""
    pool = BlockPool(2 * SMALL)
    assert pool.lease(2 * SMALL + 1) is None
    first, _ = leased(pool), leased(pool)
    assert pool.lease(1) is None
    first.release()
    assert pool.lease(1) is first


def test_idle_blocks_make_room_for_others_the_longest_unused_first() -> None:
    """But not in vain."""
    pool = BlockPool(4 * SMALL)
    held, *idle = [leased(pool) for _ in range(4)]
    for block in idle:
        block.release()
    assert pool.lease(4 * SMALL) is None
    assert leased(pool) is idle[2]
    idle[2].release()
    assert leased(pool, 2 * SMALL).nbytes == 2 * SMALL
    assert leased(pool) is idle[2]
    assert pool.lease(1) is None
    assert held.shares == 1


def test_a_block_stays_where_the_pool_has_as_much_beside_it(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it is large: else the next call would need another one, for little."""
    assert not leased(pool).may_stay()
    monkeypatch.setattr(module, "MIN_KEPT_BYTES", SMALL)
    few = BlockPool(4 * SMALL)
    first = leased(few)
    assert first.may_stay()
    second, third = leased(few), leased(few)
    assert not first.may_stay()
    third.release()
    assert first.may_stay()
    assert second.may_stay()


def test_there_are_only_so_many(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps files open."""
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    first, _ = leased(pool), leased(pool)
    assert pool.lease(1) is None
    first.release()
    assert leased(pool, 2 * SMALL) is not first


def test_what_has_not_been_used_for_a_minute_goes_back_to_the_system(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next occasion."""
    before = left()
    block = leased(pool)
    leased(pool).release()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + IDLE_S + 1)
    block.release()
    _, mapped = left()
    assert mapped == before[1] + 1
    assert leased(pool) is block


def test_without_numpy_or_files_in_memory_there_are_no_blocks(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else changes."""
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "numpy")
        assert pool.lease(1) is None
        assert pool.copy_in(numbered(9)) is None
    monkeypatch.delattr(os, "memfd_create")
    assert pool.lease(1) is None
    assert pool.find(1 << 40, 1) is None


def test_a_process_that_may_open_no_more_files_has_no_block(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data travels then."""

    def fail(nbytes: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(shared_memory, "create_sealed", fail)
    assert pool.lease(1) is None


# copying --------------------------------------------------------------------------------------


def test_copies_lie_behind_one_another_aligned(pool: BlockPool) -> None:
    """So that jax takes each of them as it lies there."""
    buffers = numbered(1, 100_000, 0, 64, 300_000)
    places = pool.copy_in(buffers)
    assert places is not None
    assert len({block for block, _ in places}) == 1
    for (block, offset), buffer in zip(places, buffers, strict=True):
        assert offset % 64 == 0
        assert bytes(block.view[offset : offset + len(buffer)]) == bytes(buffer)


def test_a_block_that_was_written_is_written_over(pool: BlockPool) -> None:
    """Whether the second content is shorter, longer or elsewhere."""
    for sizes in ([100_000], [50_000, 90_000], [10], [250_000], [3, 70_000]):
        buffers = numbered(*sizes)
        places = pool.copy_in(buffers)
        assert places is not None
        for (block, offset), buffer in zip(places, buffers, strict=True):
            assert block.number == 1
            assert bytes(block.view[offset : offset + len(buffer)]) == bytes(buffer)
            block.release()


def test_large_arrays_are_copied_by_several_threads(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are processors; every byte arrives at its place."""
    monkeypatch.setattr(module, "usable_processors", lambda: 8)
    monkeypatch.setattr(module, "_COPY_PART_BYTES", 100_000)
    started: list[threading.Thread] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    data = memoryview(random.Random(0).randbytes(900_001))
    for _ in range(2):  # the second time into memory that was written before
        places = pool.copy_in([data])
        assert places is not None
        ((block, offset),) = places
        assert bytes(block.view[offset : offset + len(data)]) == bytes(data)
        block.release()
    assert len(started) == 3


def test_only_what_was_never_written_is_written_by_way_of_the_file(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slower than a copy into memory that was touched before."""
    fresh: list[int] = []
    write_fresh = shared_memory.write_fresh

    def counting(fd: int, memory: memoryview, offset: int, data: memoryview) -> None:
        fresh.append(len(data))
        write_fresh(fd, memory, offset, data)

    monkeypatch.setattr(shared_memory, "write_fresh", counting)
    for size in (1000, 500, 1000, 1500):
        places = pool.copy_in(numbered(size))
        assert places is not None
        places[0][0].release()
    assert fresh == [1000, 500]


def test_no_copies_need_no_block(pool: BlockPool) -> None:
    """And too many find none."""
    assert pool.copy_in([]) == []
    assert pool.copy_in([memoryview(bytes(LIMIT // 2)), memoryview(b"x")] * 2) is None


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_copy_that_fails_leaves_the_block_free(
    pool: BlockPool, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    """Without memory the data travels; an interrupt is one."""

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "write_fresh", fail)
        if failure is OSError:
            assert pool.copy_in(numbered(9, 9)) is None
        else:
            with pytest.raises(KeyboardInterrupt):
                pool.copy_in(numbered(9, 9))
    assert leased(pool).number == 1


# copies that last ---------------------------------------------------------------------------


def lasting(pool: BlockPool, *buffers: memoryview) -> list[tuple[SharedBlock, int]]:
    places = pool.copy_in(buffers, lasting=True)
    assert places is not None
    for (block, offset), data in zip(places, buffers, strict=True):
        assert bytes(block.view[offset : offset + len(data)]) == bytes(data)
    return places


@pytest.fixture
def filling(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> BlockPool:
    """A pool whose lasting copies fill blocks of this size."""
    monkeypatch.setattr(module, "MIN_KEPT_BYTES", 4 * SMALL)
    return pool


def test_lasting_copies_fill_one_block_after_the_other(filling: BlockPool) -> None:
    """From its beginning again once nobody holds any of it; what is larger has its own."""
    held = [lasting(filling, *numbered(SMALL, 1000)) for _ in range(6)]
    assert [each[0][0].number for each in held] == [1, 1, 1, 2, 2, 2]
    assert lasting(filling, *numbered(4 * SMALL))[0][0].number == 3
    for places in held:
        filling.release(places)
    ((block, offset),) = lasting(filling, *numbered(100))
    assert (block.number, offset) == (2, 0)  # which was let go last
    assert leased(filling, 4 * SMALL).number == 1


def test_a_block_that_another_has_taken_is_not_filled_on(filling: BlockPool) -> None:
    """Though it was the one that was being filled."""
    filling.release(lasting(filling, *numbered(SMALL)))
    taken = leased(filling, 4 * SMALL)
    taken.view[:6] = b"theirs"
    ((block, _),) = lasting(filling, *numbered(SMALL))
    assert block is not taken
    assert bytes(taken.view[:6]) == b"theirs"


def test_an_array_is_found_where_it_was_copied_as_long_as_both_are_what_they_were(
    filling: BlockPool,
) -> None:
    """Also after its copy was let go; not when one byte of it changed, or the block was reused."""
    data = memoryview(bytearray(b"x" * SMALL))
    assert filling.find_copy(data) is None
    ((block, offset),) = lasting(filling, data)
    assert filling.find_copy(data) == (block, offset)
    data[-1] = ord("y")
    assert filling.find_copy(data) is None
    data[-1] = ord("x")
    for _ in range(2):
        block.release()
    assert filling.find_copy(data) == (block, offset)
    block.release()
    assert leased(filling, 4 * SMALL) is block
    assert filling.find_copy(data) is None
    block.release()
    assert leased(filling, SMALL) is not block


def test_an_interrupt_while_arrays_are_compared_leaves_no_share(
    filling: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the block would never be used again."""
    (data,) = numbered(SMALL)
    ((block, _),) = lasting(filling, data)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_are_equal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filling.find_copy(data)
    assert block.shares == 1
    block.release()
    assert leased(filling, 4 * SMALL) is block


def test_a_block_that_was_being_filled_is_given_back_as_any_other(
    filling: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was idle; the array that was copied there is found no more."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    before, (data,) = left(), numbered(SMALL)
    filling.release(lasting(filling, data))
    now += IDLE_S + 1
    leased(filling)
    assert filling.find_copy(data) is None
    assert left()[1] == before[1] + 1


def test_blocks_stay_where_as_many_can_be_leased_beside_them(
    filling: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has open files, and there are only so many."""
    monkeypatch.setattr(module, "MAX_BLOCKS", 4)
    held = [leased(filling, 4 * SMALL) for _ in range(2)]
    assert held[0].may_stay()
    more = leased(filling)
    assert not held[0].may_stay()
    more.release()
    assert held[0].may_stay()


def test_threads_fill_a_block_side_by_side(filling: BlockPool) -> None:
    """None writes where another does."""
    outcomes: list[bool] = []

    def fill(number: int) -> None:
        data = memoryview(bytes([number]) * 1000)
        held = [lasting(filling, data)[0] for _ in range(200)]
        outcomes.append(all(bytes(b.view[at : at + 1000]) == bytes(data) for b, at in held))

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_block_that_a_child_has_is_not_filled_on(filling: BlockPool) -> None:
    """Nor by the child, which has none of its parent's copies."""
    data = numbered(1000)
    ((block, _),) = lasting(filling, *data)

    def child() -> bool:
        return filling.find_copy(data[0]) is None and lasting(filling, *data)[0][0] is not block

    assert in_child(child)
    assert lasting(filling, *data)[0][0] is not block


# finding --------------------------------------------------------------------------------------


def test_what_lies_in_a_block_is_found(pool: BlockPool) -> None:
    """And holds a share from then on."""
    others = [leased(pool) for _ in range(3)]
    block = leased(pool)
    assert pool.find(address_of(block.view) + 100, 50) == (block, 100)
    assert pool.find(address_of(block.view), SMALL) == (block, 0)
    for _ in range(2):
        block.release()
        assert leased(pool) is not block
    block.release()
    assert leased(pool) is block
    assert len(others) == 3


def test_what_lies_elsewhere_is_not_found(pool: BlockPool) -> None:
    """Nor what begins in a block and ends outside, nor what is in a block that nobody holds."""
    data = np.zeros(100, "u1")
    assert pool.find(data.ctypes.data, 100) is None
    block = leased(pool)
    start = address_of(block.view)
    assert pool.find(data.ctypes.data, 100) is None
    assert pool.find(start - 1, 1) is None
    assert pool.find(start + SMALL - 9, 10) is None
    assert pool.find(start + SMALL, 1) is None
    block.release()
    assert pool.find(start, 1) is None


# telling --------------------------------------------------------------------------------------


def test_each_connection_is_told_of_a_block_once(pool: BlockPool) -> None:
    """After it has been sent; until then, every call that uses the block sends it."""
    one, other = Connection(), Connection()
    first, second = leased(pool), leased(pool)
    for _ in range(2):
        assert pool.unannounced(one, [first, first]) == [first]
    pool.announced(one, [first])
    assert pool.unannounced(one, [second, first]) == [second]
    assert pool.unannounced(other, [second, first]) == [second, first]


def test_connections_are_told_of_what_is_gone_if_they_knew_it() -> None:
    """Each once."""
    pool = BlockPool(2 * SMALL)
    one, other = Connection(), Connection()
    blocks = [leased(pool), leased(pool)]
    pool.announced(one, blocks)
    pool.announced(other, blocks[:1])
    assert pool.announced(one, []) == []
    for block in blocks:
        block.release()
    leased(pool, 2 * SMALL)
    assert pool.announced(one, []) == [1, 2]
    assert pool.announced(one, []) == []
    assert pool.announced(other, []) == [1]
    assert pool.announced(Connection(), []) == []


# threads and processes ------------------------------------------------------------------------


def test_a_share_can_be_given_back_while_the_pool_is_busy(pool: BlockPool) -> None:
    """Garbage collection does that, in the very thread that holds the lock."""
    block = leased(pool)
    with pool._lock:
        block.release()
    assert leased(pool) is block


def in_child(check: Callable[[], Any]) -> bool:
    """Whether `check` was true in the child of a fork."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_the_child_of_a_fork_has_no_blocks_of_its_parent(pool: BlockPool) -> None:
    """What it writes into its own is not seen there; the parent's go on as before."""
    block, idle = leased(pool), leased(pool)
    idle.release()
    block.view[:6] = b"parent"

    def child() -> bool:
        lost = pool.find(block.address, 6) is None
        places = pool.copy_in([memoryview(b"child!")])
        block.release()  # an array of the parent's that is collected here
        another = pool.lease(1)
        assert places is not None
        return lost and len({places[0][0], another, block, idle}) == 4

    assert in_child(child)
    assert bytes(block.view[:6]) == b"parent"
    assert leased(pool) is idle


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_what_a_child_has_is_not_used_again(pool: BlockPool) -> None:
    """It would see other data in its arrays; what it has not is used as before."""
    held, another = leased(pool), leased(pool)
    another.release()
    assert in_child(lambda: True)
    held.release()
    assert leased(pool) is another
    assert held not in {another, leased(pool)}
