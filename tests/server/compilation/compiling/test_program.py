"""Compiled programs that several executables may share."""

from __future__ import annotations

import gc
from typing import Any

from jaxd_server.compilation.compiling import program as programs
from jaxd_server.compilation.compiling.program import Program, Programs
from tests.server.staging import at_once, until, waiting


def program(name: bytes = b"p") -> Program:
    """One that is only there."""
    return Program(name, lambda *leaves: list(leaves))


def test_a_program_is_made_once_and_found_again() -> None:
    """As long as something holds it."""
    programs = Programs()
    made: list[Program] = []

    def make() -> Program:
        made.append(program())
        return made[-1]

    first = programs.obtain(b"p", make)
    assert programs.obtain(b"p", make) is programs.find(b"p") is first
    assert (len(made), dict(programs._programs)) == (1, {b"p": first})
    assert programs.find(b"q") is None


def test_a_program_that_nothing_holds_is_gone() -> None:
    """The table does not keep it, and the next one makes it again."""
    programs = Programs()
    first = programs.obtain(b"p", program)
    del first
    gc.collect()
    assert (programs.find(b"p"), len(programs._programs)) == (None, 0)
    again = programs.obtain(b"p", program)
    assert programs.find(b"p") is again


def test_many_who_ask_at_once_get_the_same() -> None:
    """One of them makes it."""
    programs = Programs()
    made: list[Program] = []

    def make() -> Program:
        (flight,) = programs._flights._flights.values()
        until(lambda: waiting(flight._condition) == 5)
        made.append(program())
        return made[-1]

    outcomes = at_once(6, lambda _: programs.obtain(b"p", make))
    assert {id(each) for each in outcomes} == {id(made[0])}
    assert len(made) == 1


def test_a_failure_reaches_everybody_and_is_not_kept() -> None:
    """Who asks later makes it."""
    programs = Programs()

    def fail() -> Any:
        (flight,) = programs._flights._flights.values()
        until(lambda: waiting(flight._condition) == 3)
        raise MemoryError("no room")

    outcomes = at_once(4, lambda _: programs.obtain(b"p", fail))
    assert [str(error) for error in outcomes] == ["no room"] * 4
    assert len({id(error) for error in outcomes}) == 1
    assert programs.find(b"p") is None
    assert programs.obtain(b"p", program).id == b"p"


def test_one_program_does_not_wait_for_another() -> None:
    """Making one may make another."""
    programs = Programs()
    outer = programs.obtain(b"p", lambda: program(programs.obtain(b"q", lambda: program(b"q")).id))
    assert outer.id == b"q"


def test_programs_of_several_devices_start_one_at_a_time() -> None:
    """Whichever they are: devices that wait for each other must begin them in one order."""

    def run() -> list[Any]:
        return [programs._spread.locked()]

    spread, single = Program(b"p", run, devices=(0, 1)), Program(b"q", run, devices=(0,))
    assert (spread.call(), single.call(), run()) == ([True], [False], [False])
    assert spread.compiled is single.compiled is single.call is run
