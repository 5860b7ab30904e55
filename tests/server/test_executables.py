from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.calls import Options
from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.statics import statics_of
from jaxd_server import executables as module
from jaxd_server.compiler import Executable
from jaxd_server.executables import Executables
from jaxd_server.functions import Function
from jaxd_server.jax_private import live_executables
from jaxd_server.marshal import read_arguments
from jaxd_server.progress import SILENT
from jaxd_server.reclaimer import Reclaimer
from tests.server.in_process import Kitchen, encode, function_of
from tests.server.staging import at_once, until, waiting


class Shelf:
    """A table of executables that are empty shells, and what was built for it."""

    def __init__(self, limit: int = 100) -> None:
        self.table = Executables(Reclaimer(), limit)
        self.built: list[Executable] = []

    def build(self) -> Executable:
        """One that is used later than all before it."""
        executable = Executable("it", None, ())
        executable.last_use = float(len(self.built))
        self.built.append(executable)
        return executable

    def obtain(self, function: Function, *args: Any, build: Any = None) -> Executable:
        """The executable for a call, as the pipeline asks for it."""
        statics = statics_of(function.function, function.options)
        skeleton, blob, buffers = encode(args, statics=statics)
        layout = self.table.layout(function.key, skeleton)
        arguments = read_arguments(layout, blob, buffers)
        return self.table.obtain(function, skeleton, layout, arguments, build or self.build)

    def planned(self, function: Function, *args: Any) -> Executable | None:
        """What answers such a call without a further look."""
        statics = statics_of(function.function, function.options)
        plan = self.table.plan(function.key, encode(args, statics=statics)[0])
        return plan.executable if plan else None


def traced(x: Any) -> Any:
    return x


def static(n: Any) -> Any:
    return jnp.ones(3)


TRACED = function_of(traced)
STATIC = function_of(static, Options(static_argnums=(0,)))


def test_a_signature_is_built_once() -> None:
    """And found again, by a look at the arguments or by their skeleton alone."""
    shelf = Shelf()
    first = shelf.obtain(TRACED, np.ones(3))
    assert shelf.obtain(TRACED, np.zeros(3)) is first
    assert shelf.planned(TRACED, np.zeros(3)) is first
    assert len(shelf.built) == len(shelf.table) == 1


def test_another_signature_is_another_executable() -> None:
    """Nothing is planned for what was never seen."""
    shelf = Shelf()
    first = shelf.obtain(TRACED, np.ones(3))
    assert shelf.planned(TRACED, np.ones(4)) is None
    assert shelf.obtain(TRACED, np.ones(4)) is not first


def test_another_function_or_option_is_another_executable() -> None:
    """With the same arguments."""
    shelf = Shelf()
    others = [function_of(traced, Options(inline=True)), function_of(traced, Options(extra_key=1))]
    found = {id(shelf.obtain(function, 1.0)) for function in (TRACED, *others)}
    assert len(found) == 3


def test_the_order_of_a_dict_does_not_matter() -> None:
    """Two skeletons, one executable, and a plan for each."""
    shelf = Shelf()
    ab, ba = {"a": 1.0, "b": 2}, {"b": 2, "a": 1.0}
    first = shelf.obtain(TRACED, ab)
    assert shelf.planned(TRACED, ba) is None
    assert shelf.obtain(TRACED, ba) is first
    assert shelf.planned(TRACED, ab) is shelf.planned(TRACED, ba) is first
    assert len(shelf.built) == 1


CONFUSABLE: list[tuple[Function, Any, Any]] = [
    (STATIC, 3, 4),
    (STATIC, 3, 3.0),
    (STATIC, 1, True),
    (STATIC, (1,), (True,)),
    (STATIC, (2, "a"), (2.0, "a")),
    (STATIC, 0.0, -0.0),
    (STATIC, "1", b"1"),
    (TRACED, 1, True),
    (TRACED, 1, 1.0),
    (TRACED, 1.0, np.float32(1)),
    (TRACED, jnp.asarray(1.0), jnp.asarray(1.0, jnp.float32)),
    (TRACED, jnp.full(3, 1.0), jnp.full(3, 1.0, jnp.float32)),
    (TRACED, jax.random.key(0), jax.random.key(0, impl="rbg")),
]


@pytest.mark.parametrize(("function", "one", "other"), CONFUSABLE)
def test_what_looks_alike_is_not_confused(function: Function, one: Any, other: Any) -> None:
    """Each has its own executable, however the calls are found."""
    shelf = Shelf()
    first, second = shelf.obtain(function, one), shelf.obtain(function, other)
    assert first is not second
    assert shelf.planned(function, one) is first
    assert shelf.planned(function, other) is second


def test_a_static_value_is_not_taken_for_a_traced_one() -> None:
    """Although the options are all that differs."""
    shelf = Shelf()
    assert shelf.obtain(STATIC, 3) is not shelf.obtain(function_of(static), 3)


def test_the_least_recently_used_ones_are_dropped() -> None:
    """Those that calls still come to are kept."""
    shelf = Shelf()
    kept, *dropped, last = (shelf.obtain(TRACED, np.ones(size)) for size in range(4))
    kept.last_use = 100.0
    assert shelf.table.reclaim(2) == 2
    assert len(shelf.table) == 2
    assert shelf.planned(TRACED, np.ones(0)) is kept
    assert shelf.planned(TRACED, np.ones(3)) is last
    assert shelf.obtain(TRACED, np.ones(1)) not in dropped


def test_no_plan_outlives_its_executable() -> None:
    """A call that comes later finds nothing and builds."""
    shelf = Shelf()
    shelf.obtain(TRACED, {"a": 1, "b": 2})
    shelf.obtain(TRACED, {"b": 1, "a": 2})
    assert shelf.table.reclaim(5) == 1
    assert shelf.planned(TRACED, {"a": 1, "b": 2}) is None
    assert shelf.planned(TRACED, {"b": 1, "a": 2}) is None
    shelf.obtain(TRACED, {"a": 1, "b": 2})
    assert len(shelf.built) == 2


def test_an_executable_that_is_dropped_as_soon_as_it_is_built_has_no_plan() -> None:
    """Its one call still gets it."""
    shelf = Shelf(limit=0)
    assert shelf.obtain(TRACED, 1.0) is shelf.built[0]
    assert len(shelf.table) == 0
    assert shelf.planned(TRACED, 1.0) is None


def test_the_limit_is_kept() -> None:
    """By dropping the oldest one for each that is built."""
    shelf = Shelf(limit=2)
    for size in range(5):
        shelf.obtain(TRACED, np.ones(size))
        assert len(shelf.table) <= 2
    assert shelf.table.surplus() == 0
    assert [shelf.planned(TRACED, np.ones(size)) is not None for size in range(5)] == [
        *(False, False, False),
        *(True, True),
    ]


def test_nothing_is_dropped_when_nothing_is_asked_for() -> None:
    """A pool without surplus is asked for none."""
    shelf = Shelf()
    shelf.obtain(TRACED, 1.0)
    assert shelf.table.reclaim(0) == 0
    assert len(shelf.table) == 1


def test_plans_do_not_pile_up() -> None:
    """However many skeletons mean one signature."""
    shelf = Shelf(limit=4)
    names = [f"key {index}" for index in range(5)]
    for turn in range(200):
        rotated = names[turn % 5 :] + names[: turn % 5]
        order = [rotated[0], *sorted(rotated[1:], key=lambda name, turn=turn: hash((name, turn)))]  # type: ignore[misc]
        shelf.obtain(TRACED, dict.fromkeys(order, 1.0))
    assert len(shelf.table._plans) <= 8 * 4
    assert len(shelf.built) == 1


def test_pickled_arguments_are_looked_at_in_each_call() -> None:
    """Their bytes say nothing about their signature."""
    shelf = Shelf()
    tree = {frozenset({1}): np.ones(2)}  # unusual keys: the whole dict is pickled
    first = shelf.obtain(TRACED, tree)
    assert shelf.planned(TRACED, tree) is None
    assert shelf.obtain(TRACED, tree) is first


def test_a_failed_build_reaches_everybody_and_is_not_kept() -> None:
    """Who asks later builds again."""
    shelf = Shelf()

    def fail() -> Executable:
        (flight,) = shelf.table._flights._flights.values()
        until(lambda: waiting(flight._condition) == 3)
        raise ValueError("too deep")

    outcomes = at_once(4, lambda _: shelf.obtain(TRACED, 1.0, build=fail))
    assert [str(error) for error in outcomes] == ["too deep"] * 4
    assert len(shelf.table) == 0
    assert shelf.planned(TRACED, 1.0) is None
    assert shelf.obtain(TRACED, 1.0) is shelf.built[0]


def test_one_of_many_builds() -> None:
    """The others get the same executable."""
    shelf = Shelf()
    outcomes = at_once(8, lambda _: shelf.obtain(TRACED, 1.0))
    assert {id(executable) for executable in outcomes} == {id(shelf.built[0])}


def test_an_argument_that_cannot_be_traced_builds_nothing() -> None:
    """The error says which type it was."""
    shelf = Shelf()
    with pytest.raises(ArgumentError, match="type str"):
        shelf.obtain(TRACED, "text")
    assert len(shelf.table) == 0


def test_reclaiming_frees_the_compiled_programs(kitchen: Kitchen) -> None:
    """All ten of one function that lives on; the number of programs in memory goes back."""
    shelf = Shelf()
    shelf.table = kitchen.executables
    function = function_of(lambda x: x * 7 + 1)
    arrays = [np.ones(size, np.float32) for size in range(1, 11)]
    gc.collect()
    before = live_executables()
    for array in arrays:
        executable = shelf.obtain(
            function,
            array,
            build=lambda array=array: kitchen.compiler.build(function, (array,), {}, SILENT),
        )
        executable((array,), {})
    assert live_executables() == before + 10
    del executable
    assert kitchen.executables.reclaim(10) == 10
    gc.collect()
    assert live_executables() == before
    assert kitchen.counts() == (10, 10)


def test_what_is_known_of_a_function_goes_with_its_last_executable() -> None:
    """A server that has seen many functions does not remember all of them."""
    shelf = Shelf()
    kept, gone = function_of(lambda x: x), function_of(lambda x: x * 2, Options(inline=True))
    for function, count in ((gone, 1), (kept, 2)):
        for size in range(count):
            shelf.obtain(function, np.ones(size))
    assert set(shelf.table._statics) == {kept.key, gone.key}
    assert shelf.table.reclaim(2) == 2
    assert set(shelf.table._statics) == {kept.key}


def test_functions_that_fail_each_time_are_not_all_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have no executable with which they could go."""
    monkeypatch.setattr(module, "_PLANS_PER_EXECUTABLE", 0)
    shelf = Shelf()
    for options in (Options(), Options(inline=True)):
        with pytest.raises(ArgumentError):
            shelf.obtain(function_of(lambda x: x, options), "text")
    assert len(shelf.table._statics) == 1
