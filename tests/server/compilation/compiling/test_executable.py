"""What answers the calls of one function with one signature."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.compiling.executable import QUICK_S, Costs, Executable
from jaxd_server.compilation.compiling.program import Program
from tests.server.builds import executable

FORM = ResultLayout.of(b"N", ())


def running(call: Any, **options: Any) -> Executable:
    """One that runs `call`."""
    return Executable("step", b"k", Program(b"p", call), FORM, **options)


def test_it_is_called_with_leaves_and_returns_leaves() -> None:
    """In the order of its program."""
    assert running(lambda *leaves: list(leaves)[::-1])([1, 2, 3]) == [3, 2, 1]


def test_settings_are_in_force_while_it_runs() -> None:
    """Those of its own, in this thread, and not afterwards."""
    seen: list[Any] = []

    def call(x: Any) -> list[Any]:
        seen.append(jnp.asarray(x).dtype.name)
        return []

    running(call, config=(("jax_enable_x64", True),))([1.0])
    running(call)([1.0])
    assert seen == ["float64", "float32"]


def test_it_is_in_use_while_somebody_holds_it() -> None:
    """Also when several do, and one lets go."""
    one = running(list)
    seen = [one.in_use]
    for step in (one.hold, one.hold, one.release, one.release):
        step()
        seen.append(one.in_use)
    assert seen == [False, True, True, True, False]


def test_the_first_call_says_nothing_of_how_long_calls_take() -> None:
    """It pays for what is done only once; later ones are smoothed."""
    one = executable()
    smoothed = []
    for seconds in (10.0, 1.0, 2.0):
        one.record_run_time(seconds)
        smoothed.append(one.run_s)
    assert smoothed == [None, 1.0, 1.25]
    assert one.calls == 3


def test_how_long_it_takes_to_run_and_to_start_are_two_things() -> None:
    """A long computation is dispatched in no time; one that calls Python may have to wait."""
    one, seen = executable(), []

    def look() -> None:
        seen.append((one.runs_quickly, one.starts_quickly))

    look()
    for run_s, start_s in ((10 * QUICK_S, QUICK_S / 10), (QUICK_S / 10, 2 * QUICK_S)):
        for _ in range(20):
            one.record_run_time(run_s)
            one.record_start_time(start_s)
        look()
    one.record_start_time(-100 * QUICK_S)
    look()
    one.calls_python = True
    look()
    assert seen == [(False, False), (False, True), (True, False), (True, True), (True, False)]


def test_its_last_use_is_that_of_its_last_call() -> None:
    """Those that were not used for longest are dropped first."""
    one, other = executable(), executable()
    other.record_run_time(0.1)
    before = other.last_use
    one.record_run_time(0.1)
    assert one.last_use >= before
    assert other.last_use == before


def test_each_one_has_a_number_of_its_own() -> None:
    """No later one is taken for one that is gone."""
    assert len({executable().serial for _ in range(5)}) == 5


def test_what_a_process_would_pay_is_tracing_and_compiling() -> None:
    """However this one came by it."""
    assert Costs(1.0, 2.0, 0.1).build_s == 3.0
    assert Costs().build_s == 0.0
