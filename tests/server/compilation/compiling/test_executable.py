"""What answers the calls of one function with one signature."""

from __future__ import annotations

from typing import Any

from jaxd_server.compilation.compiling import program as programs
from jaxd_server.compilation.compiling.executable import QUICK_S
from jaxd_server.compilation.compiling.program import Program
from tests.server.builds import executable


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


def test_programs_of_several_devices_start_one_at_a_time() -> None:
    """Whichever they are: devices that wait for each other must begin them in one order."""

    def run() -> list[Any]:
        return [programs._spread.locked()]

    spread, single = Program(b"p", run, devices=(0, 1)), Program(b"q", run, devices=(0,))
    assert (spread.call(), single.call(), run()) == ([True], [False], [False])
    assert spread.compiled is single.compiled is single.call is run
