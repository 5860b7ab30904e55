from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.packages.distributions import Package
from jaxd_server.codec.arguments import leaves_of, read_leaves
from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.eviction import Limits
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.function import Function
from jaxd_server.runtime.imported_packages import Change, Dependencies
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from tests.ids import row
from tests.server.builds import executable as shell
from tests.server.builds import live_executables
from tests.server.in_process import PipelineHarness, Source, encode, function_of
from tests.server.staging import at_once, until


class Table:
    """A table of executables that are empty shells, and what was made for it."""

    def __init__(self, count: int = 100, **limits: int) -> None:
        self.pool = Executables(Reclaimer(), Limits(count, **limits), resident=lambda: 0)
        self.made: list[Executable] = []

    def make(self) -> Executable:
        """One that is used later than all before it."""
        executable = shell()
        executable.last_use = float(len(self.made))
        self.made.append(executable)
        return executable

    def add(
        self, *, seconds: float = 0.0, host_bytes: int = 0, device_bytes: int = 0, who: str = ""
    ) -> None:
        """One that took that, for a call of its own."""
        one = self.make()
        one.costs, one.structure, one.principal = Costs(0.0, seconds, seconds), "from here", who
        one.program.host_bytes, one.program.device_bytes = host_bytes, device_bytes
        self.obtain(TRACED, np.ones(len(self.made)), make=lambda: one)
        until(lambda: one.serial not in self.pool._makers)  # its thread holds it a moment longer

    @property
    def here(self) -> list[int]:
        """Which of those that were made are left, by their number."""
        left = self.pool.all()
        return [number for number, one in enumerate(self.made) if one in left]

    def obtain(self, function: Function, *args: Any, make: Any = None) -> Executable:
        """The executable for a call, as the pipeline asks for it."""
        skeleton, blob, buffers = encode(args, statics=function.statics)
        layout = self.pool.layout(function.key, skeleton)
        arguments = layout.build(read_leaves(layout.whole, blob, buffers))
        return self.pool.obtain(function, skeleton, layout, arguments, make or self.make)

    def planned(self, function: Function, *args: Any) -> Executable | None:
        """What answers such a call without a further look."""
        plan = self.pool.plan(function.key, encode(args, statics=function.statics)[0])
        return plan.executable if plan else None


def traced(x: Any) -> Any:
    return x


def static(n: Any) -> Any:
    return jnp.ones(3)


TRACED = function_of(traced)
STATIC = function_of(static, Options(static_argnums=(0,)))


def test_a_signature_is_built_once() -> None:
    """And found again, by a look at the arguments or by their skeleton alone."""
    table = Table()
    assert table.planned(TRACED, np.ones(3)) is None
    first = table.obtain(TRACED, np.ones(3))
    assert table.obtain(TRACED, np.zeros(3)) is first
    assert table.planned(TRACED, np.zeros(3)) is first
    assert len(table.made) == len(table.pool) == 1


def test_another_function_or_option_is_another_executable() -> None:
    """With the same arguments."""
    table = Table()
    others = [function_of(traced, Options(inline=True)), function_of(traced, Options(extra_key=1))]
    found = {id(table.obtain(function, 1.0)) for function in (TRACED, *others)}
    assert len(found) == 3


def test_the_order_of_a_dict_does_not_matter() -> None:
    """Two skeletons, one executable, and a plan for each."""
    table = Table()
    ab, ba = {"a": 1.0, "b": 2}, {"b": 2, "a": 1.0}
    first = table.obtain(TRACED, ab)
    assert table.planned(TRACED, ba) is None
    assert table.obtain(TRACED, ba) is first
    assert table.planned(TRACED, ab) is table.planned(TRACED, ba) is first
    assert len(table.made) == 1


CONFUSABLE: list[tuple[Function, Any, Any]] = [
    (STATIC, 3, 4),
    (STATIC, 3, 3.0),
    (STATIC, 1, True),
    (STATIC, (1,), (True,)),
    (STATIC, (2, "a"), (2.0, "a")),
    (STATIC, 0.0, -0.0),
    (STATIC, "1", b"1"),
    (TRACED, np.ones(3), np.ones(4)),
    (TRACED, 1, True),
    (TRACED, 1, 1.0),
    (TRACED, 1.0, np.float32(1)),
    (TRACED, jnp.asarray(1.0), jnp.asarray(1.0, jnp.float32)),
    (TRACED, jnp.full(3, 1.0), jnp.full(3, 1.0, jnp.float32)),
    (TRACED, jax.random.key(0), jax.random.key(0, impl="rbg")),
]


def test_what_looks_alike_is_not_confused() -> None:
    """Each has its own executable, however the calls are found."""
    for function, one, other in CONFUSABLE:
        with row((function, one, other)):
            table = Table()
            first, second = table.obtain(function, one), table.obtain(function, other)
            assert first is not second
            assert table.planned(function, one) is first
            assert table.planned(function, other) is second


def test_a_static_value_is_not_taken_for_a_traced_one() -> None:
    """Although the options are all that differs."""
    table = Table()
    assert table.obtain(STATIC, 3) is not table.obtain(function_of(static), 3)


def test_the_least_recently_used_ones_are_dropped() -> None:
    """Those that calls still come to are kept."""
    table = Table()
    kept, *dropped, last = (table.obtain(TRACED, np.ones(size)) for size in range(4))
    kept.last_use = 100.0
    assert (table.pool.reclaim(0), table.pool.reclaim(2)) == (0, 2)
    assert len(table.pool) == 2
    assert table.planned(TRACED, np.ones(0)) is kept
    assert table.planned(TRACED, np.ones(3)) is last
    assert table.obtain(TRACED, np.ones(1)) not in dropped


def test_no_plan_outlives_its_executable() -> None:
    """A call that comes later finds nothing and builds."""
    table = Table()
    table.obtain(TRACED, {"a": 1, "b": 2})
    table.obtain(TRACED, {"b": 1, "a": 2})
    assert table.pool.reclaim(5) == 1
    assert table.planned(TRACED, {"a": 1, "b": 2}) is None
    assert table.planned(TRACED, {"b": 1, "a": 2}) is None
    table.obtain(TRACED, {"a": 1, "b": 2})
    assert len(table.made) == 2


def test_an_executable_that_is_dropped_as_soon_as_it_is_built_has_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its one call still gets it."""
    table = Table()
    monkeypatch.setattr(table.pool._reclaimer, "relieve", lambda: table.pool.forget(TRACED.key))
    assert table.obtain(TRACED, 1.0) is table.made[0]
    assert len(table.pool) == 0
    assert table.planned(TRACED, 1.0) is None


def test_the_limit_is_kept() -> None:
    """By dropping the oldest one for each that is built."""
    table = Table(count=2)
    for size in range(5):
        table.obtain(TRACED, np.ones(size))
        assert len(table.pool) <= 2
    assert table.pool.shrink() == 0
    assert [table.planned(TRACED, np.ones(size)) is not None for size in range(5)] == [
        *(False, False, False),
        *(True, True),
    ]


def test_plans_do_not_pile_up() -> None:
    """However many skeletons mean one signature."""
    table = Table(count=4)
    names = [f"key {index}" for index in range(5)]
    for turn in range(200):
        rotated = names[turn % 5 :] + names[: turn % 5]
        order = [rotated[0], *sorted(rotated[1:], key=lambda name, turn=turn: hash((name, turn)))]  # type: ignore[misc]
        table.obtain(TRACED, dict.fromkeys(order, 1.0))
    assert len(table.pool._plans) <= 8 * 4
    assert len(table.made) == 1


def test_pickled_arguments_are_looked_at_in_each_call() -> None:
    """Their bytes say nothing about their signature."""
    table = Table()
    tree = {frozenset({1}): np.ones(2)}  # unusual keys: the whole dict is pickled
    first = table.obtain(TRACED, tree)
    assert table.planned(TRACED, tree) is None
    assert table.obtain(TRACED, tree) is first


def test_an_executable_in_use_is_not_dropped() -> None:
    """Another one goes in its place, or none."""
    table = Table()
    busy, idle = (table.obtain(TRACED, np.ones(size)) for size in (1, 2))
    busy.hold()
    assert table.pool.reclaim(2) == 1
    assert table.pool.all() == [busy]
    assert table.planned(TRACED, np.ones(2)) is None
    assert idle not in table.pool.all()
    busy.release()
    assert table.pool.reclaim(2) == 1


def test_forgetting_a_key_drops_its_executables_and_no_others() -> None:
    """Their plans go with them."""
    table = Table()
    for size in (1, 2):
        table.obtain(TRACED, np.ones(size))
    kept = table.obtain(STATIC, 3)
    assert table.pool.forget(TRACED.key) == 2
    assert table.pool.all() == [kept]
    assert table.planned(TRACED, np.ones(1)) is None
    assert table.planned(STATIC, 3) is kept
    assert table.pool.forget(TRACED.key) == 0


NESTED: list[tuple[Any, Function]] = [
    ({"b": 2.0, "a": [1.0, (3.0,)]}, TRACED),
    ([{"z": {"y": 1.0, "x": 2.0}}, None, 3.0], TRACED),
    ({10: 1.0, 9: 2.0}, TRACED),
]


@pytest.mark.parametrize(("tree", "function"), NESTED)
def test_leaves_are_arranged_as_the_executable_takes_them(tree: Any, function: Function) -> None:
    """Without making the tree: in the order in which jax flattens it, whatever the wire's is."""
    table = Table()
    table.obtain(function, tree)
    skeleton, blob, buffers = encode((tree,))
    plan = table.pool.plan(function.key, skeleton)
    assert plan is not None
    arranged = plan.arrange(read_leaves(plan.layout.whole, blob, buffers))
    assert arranged == leaves_of(((tree,), {}))


def test_static_arguments_are_left_out_of_the_leaves() -> None:
    """The executable was made for them, and is called with the others."""
    table = Table()
    function = function_of(lambda x, n, y: x, Options(static_argnums=(1,)))
    table.obtain(function, 1.0, 7, {"b": 3.0, "a": 2.0})
    args = (4.0, 7, {"b": 6.0, "a": 5.0})
    skeleton, blob, buffers = encode(args, statics=function.statics)
    plan = table.pool.plan(function.key, skeleton)
    assert plan is not None
    assert plan.arrange(read_leaves(plan.layout.whole, blob, buffers)) == [4.0, 5.0, 6.0]


def test_whoever_makes_or_waits_is_told_and_whoever_finds_is_not() -> None:
    """The client shows it."""
    table = Table()
    skeleton, blob, buffers = encode((1.0,))
    layout = table.pool.layout(TRACED.key, skeleton)
    arguments = layout.build(read_leaves(layout.whole, blob, buffers))
    told: list[int] = []
    for _ in range(2):
        table.pool.obtain(TRACED, skeleton, layout, arguments, table.make, lambda: told.append(1))
    assert told == [1]


def test_what_depends_on_a_changed_package_is_dropped() -> None:
    """Once: what is made of the old package after all stays, and is no plan's."""
    table, old = Table(), Package("lowlib", "1.0", b"")
    for size, rows in ((1, (("lowlib", old),)), (2, (("sidelib", old._replace(name="s")),))):
        table.obtain(TRACED, np.ones(size)).dependencies = rows

    def changes_of(dependencies: Dependencies) -> list[Change]:
        return [Change(old, None)] if ("lowlib", old) in dependencies else []

    first, second = table.made
    table.pool.drop_outdated(changes_of)
    assert (first.outdated, second.outdated) == ((Change(old, None),), ())
    assert table.planned(TRACED, np.ones(1)) is None
    assert table.planned(TRACED, np.ones(2)) is second

    def again() -> Executable:
        executable = table.make()
        executable.dependencies, executable.outdated = first.dependencies, first.outdated
        return executable

    third = table.obtain(TRACED, np.ones(1), make=again)
    assert third is not first
    table.pool.drop_outdated(changes_of)
    assert table.obtain(TRACED, np.ones(1)) is third
    assert table.planned(TRACED, np.ones(1)) is None
    table.pool.drop_outdated(lambda dependencies: [])  # the old one is back
    assert table.planned(TRACED, np.ones(1)) is third


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limits", "made", "left"),
    [
        ({"host_bytes": 10 * MIB}, [{"host_bytes": 4 * MIB}] * 4, [2, 3]),
        ({"device_bytes": 5}, [{"device_bytes": 2}] * 3, [1, 2]),
        ({"count": 2}, [{"seconds": seconds} for seconds in (30.0, 0.1, 0.1)], [0, 2]),
        ({"count": 4}, [{"who": who} for who in ("a", "b", "b", "b", "a")], [0, 2, 3, 4]),
    ],
    ids=["process", "device", "cost", "principal"],
)
def test_what_is_too_much_goes_when_the_next_one_is_made(
    limits: dict[str, int], made: list[dict[str, Any]], left: list[int]
) -> None:
    """By each limit, what it costs, and whose it is; see also test_eviction.py."""
    table = Table(**limits)
    for one in made:
        table.add(**one)
    assert table.here == left


def test_what_a_call_has_made_stays_until_that_call_ends() -> None:
    """Others that are made meanwhile do not push it out, however small the table is."""
    table = Table(1)
    one = table.make()

    def make() -> Executable:
        return one

    table.obtain(TRACED, 7.0, make=make)
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
