"""What the table of executables drops when it holds too much."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxd_server.codec.arguments import read_leaves
from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.eviction import Limits
from jaxd_server.compilation.executables import Executables
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from tests.server.builds import executable as shell
from tests.server.builds import live_executables
from tests.server.in_process import PipelineHarness, Source, encode, function_of
from tests.server.staging import at_once, until

MIB = 1 << 20
IDENTITY = function_of(lambda x: x)


ROOMY = Limits(100)


class Table:
    """A table of executables that are empty shells."""

    def __init__(self, limits: Limits = ROOMY, *, grown: int = 1 << 40, **options: Any) -> None:
        sizes = iter([1])  # that of the process: before anything is made, and then
        self.pool = Executables(
            Reclaimer(), limits, resident=lambda: next(sizes, 1 + grown), **options
        )
        self.made: list[Executable] = []

    def add(
        self, *, seconds: float = 0.0, host_bytes: int = 0, device_bytes: int = 0, who: str = ""
    ) -> Executable:
        """One that took that, and is used later than all before it."""
        one = shell()
        one.costs = Costs(0.0, seconds, seconds)
        one.structure = "from here"
        one.principal = who
        one.last_use = float(len(self.made))
        one.program.host_bytes, one.program.device_bytes = host_bytes, device_bytes
        return self.put(one)

    def put(self, one: Executable) -> Executable:
        """Has it made for a call of its own."""
        self.made.append(one)
        args = (np.ones(len(self.made)),)
        skeleton, blob, buffers = encode(args)
        layout = self.pool.layout(IDENTITY.key, skeleton)
        arguments = layout.build(read_leaves(layout.whole, blob, buffers))
        made = self.pool.obtain(IDENTITY, skeleton, layout, arguments, lambda: one)
        until(lambda: one.serial not in self.pool._makers)  # its thread holds it a moment longer
        return made

    @property
    def here(self) -> list[int]:
        """Which of them are left, by their number."""
        left = self.pool.all()
        return [number for number, one in enumerate(self.made) if one in left]


def test_programs_that_took_more_memory_than_there_is_for_them_go() -> None:
    """The oldest first, when the next one is made."""
    table = Table(limits=Limits(100, host_bytes=10 * MIB))
    for _ in range(4):
        table.add(host_bytes=4 * MIB)
    assert table.here == [2, 3]


def test_a_program_counts_with_something_although_nothing_was_seen() -> None:
    """Thousands of tiny ones are not for nothing."""
    table = Table(limits=Limits(100, host_bytes=MIB))
    for _ in range(9):
        table.add(host_bytes=0)
    assert len(table.pool) == 4


def test_bytes_that_others_took_meanwhile_are_not_counted_for_long() -> None:
    """Together, programs cannot have taken more than the process has grown."""
    table = Table(limits=Limits(100, host_bytes=10 * MIB), grown=10 * MIB)
    for _ in range(4):
        table.add(host_bytes=400 * MIB)
    assert len(table.pool) == 4


def test_where_the_size_of_the_process_is_unknown_programs_count_in_full() -> None:
    """Nothing speaks against what was measured."""
    pool = Executables(Reclaimer(), Limits(9, host_bytes=10 * MIB), resident=lambda: 0)
    table = Table()
    table.pool = pool
    for _ in range(4):
        table.add(host_bytes=4 * MIB)
    assert table.here == [2, 3]


def test_the_memory_of_the_device_is_a_limit_of_its_own() -> None:
    """Where its programs say what they take there."""
    table = Table(limits=Limits(100, device_bytes=5))
    for _ in range(3):
        table.add(device_bytes=2)
    assert table.here == [1, 2]


def test_what_took_long_to_build_outlives_what_did_not() -> None:
    """It goes when it is ten times as old."""
    table = Table(Limits(2))
    for seconds in (30.0, 0.1, 0.1):
        table.add(seconds=seconds)
    assert table.here == [0, 2]


def test_what_is_on_disk_is_cheap_to_have_again() -> None:
    """So it goes before what would have to be compiled."""
    kept: list[Executable] = []
    table = Table(Limits(2), is_kept=lambda one: one in kept)
    table.add(seconds=3.0)
    kept.append(table.add(seconds=3.0))
    table.add(seconds=3.0)
    assert table.here == [0, 2]


def test_what_came_from_disk_costs_what_that_took() -> None:
    """Not what it had cost the one who compiled it."""
    table = Table(Limits(2))
    loaded = shell(30.0)
    loaded.costs, loaded.last_use = Costs(1.0, 30.0, 0.2), 1.0
    table.add(seconds=3.0)
    table.put(loaded)
    table.add(seconds=3.0)
    assert table.here == [0, 2]


def test_whoever_holds_the_most_makes_room_for_the_others() -> None:
    """Each executable belongs to the principal who had it made."""
    table = Table(Limits(4))
    for who in ("uid:1", "uid:2", "uid:2", "uid:2", "uid:1"):
        table.add(who=who)
    assert table.here == [0, 2, 3, 4]


def test_a_shared_program_is_freed_with_its_last_executable() -> None:
    """And its bytes count once until then."""
    table = Table(limits=Limits(100, host_bytes=10 * MIB))
    first = table.add(host_bytes=9 * MIB)
    for _ in range(3):
        twin = shell()
        twin.program, twin.last_use = first.program, float(len(table.made))
        table.put(twin)
    assert table.here == [0, 1, 2, 3]
    table.add(host_bytes=2 * MIB)
    assert table.here == [4]


def test_what_a_call_has_made_stays_until_that_call_ends() -> None:
    """Others that are made meanwhile do not push it out, however small the table is."""
    table = Table(Limits(1))
    one = shell()
    one.last_use = 0.0

    def make() -> Executable:
        return one

    skeleton, blob, buffers = encode((7.0,))
    layout = table.pool.layout(IDENTITY.key, skeleton)
    arguments = layout.build(read_leaves(layout.whole, blob, buffers))
    table.pool.obtain(IDENTITY, skeleton, layout, arguments, make)
    table.add()
    assert one in table.pool.all()
    assert table.pool.reclaim(5) == 1
    assert table.pool.all() == [one]
    del make
    assert table.pool.reclaim(5) == 1


@pytest.fixture
def tiny() -> Iterator[PipelineHarness]:
    """A pipeline with room for one executable."""
    harness = PipelineHarness(limit=1)
    yield harness
    harness.close()


@pytest.mark.slow
def test_nothing_is_dropped_before_it_ran(
    tiny: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads build for a table of one; none of their executables goes before its call."""
    ran: set[int] = set()
    dropped: list[int] = []
    call, drop = Executable.__call__, Executables._drop
    together = threading.Barrier(8)

    def note_call(self: Executable, leaves: Any) -> Any:
        together.wait(30)  # all are made, and none has run
        ran.add(self.serial)
        return call(self, leaves)

    def note_drop(self: Executables, names: Any) -> list[Executable]:
        gone = drop(self, names)
        dropped.extend(one.serial for one in gone if one.serial not in ran)
        return gone

    monkeypatch.setattr(Executable, "__call__", note_call)
    monkeypatch.setattr(Executables, "_drop", note_drop)
    source = Source(lambda x: x + 1)
    values = at_once(8, lambda size: tiny.value(source, np.ones(size + 1, np.float32)))
    assert [value.shape for value in values] == [(size + 1,) for size in range(8)]
    assert dropped == []
    assert len(ran) == 8
    tiny.executables.shrink()
    assert len(tiny.executables) == 1
    assert tiny.counts() == (8, 8)


@pytest.mark.slow
def test_dropping_frees_without_the_garbage_collector(tiny: PipelineHarness) -> None:
    """The executables that jax has do not pile up, although nobody looks for cycles."""
    source = Source(lambda x: x * 5)
    gc.collect()
    gc.disable()
    try:
        before = live_executables()
        for size in range(1, 9):
            tiny.value(source, np.ones(size, np.float32))
        assert live_executables() - before <= 2
        assert len(tiny.maker.programs.known._programs) == 1
    finally:
        gc.enable()


def test_two_functions_with_one_program_free_it_together(harness: PipelineHarness) -> None:
    """With the first of them jax still has it, with the second it has not."""
    one, other = (Source(function) for function in (lambda x: x * 11 - 2, lambda y: y * 11 - 2))
    before = live_executables()
    for source in (one, other):
        harness.value(source, np.float32(1))
    assert harness.counts() == (2, 1)
    left = []
    for _ in range(2):
        assert harness.executables.reclaim(1) == 1
        left.append((len(harness.maker.programs.known._programs), live_executables() - before))
    assert left == [(1, 1), (0, 0)]
