from __future__ import annotations

import time

import pytest

from jaxd_protocol.errors import Quarantined, WorkerLost
from jaxd_server.execution.crash_guard import MAX_ALONE_S, CrashSuspects
from jaxd_server.processes.supervision.quarantine import Quarantine
from jaxd_server.runtime.flight_recorder import FlightEntry

KEY, FINGERPRINT = b"k" * 16, b"f" * 16


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(
    *, repeated: bool = True, alone: bool = True, name: str = "deadly", ran_s: float = 0.0
) -> FlightEntry:
    started = time.monotonic() - ran_s
    return FlightEntry(name, (FINGERPRINT, KEY), "uid:1", started, repeated, alone)


def judged(quarantine: Quarantine, epoch: int, lost: int = 0) -> bool:
    return CrashSuspects(quarantine.for_worker(), epoch).judge(KEY, name="deadly", lost=lost)


def test_bystanders_have_done_nothing() -> None:
    """A worker that dies of something else leaves no trace on what ran beside that."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry(repeated=False, alone=False)], 1, "SIGKILL")
    assert quarantine.for_worker() == []
    assert not judged(quarantine, 2)
    assert judged(quarantine, 2, lost=1)  # but it is repeated alone


def test_one_death_alone_makes_a_suspect() -> None:
    """It runs alone from then on, and is still called."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry()], 2, "SIGSEGV")
    assert judged(quarantine, 3)
    assert quarantine.rows() == []


def test_a_call_that_was_repeated_is_not_repeated_for_ever() -> None:
    """Its caller learns how the worker ended, of the last worker only."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry(alone=False)], 2, "SIGSEGV")
    with pytest.raises(WorkerLost, match=r"ran deadly, and again .*\(SIGSEGV\).*JAXD_INLINE=1"):
        judged(quarantine, 3, lost=2)
    assert judged(quarantine, 4, lost=2)  # this one died of another thing
    assert not judged(quarantine, 4)


def test_two_deaths_alone_are_enough() -> None:
    """A typed error says whose fault it is, how often, and how to have it called again."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry()], 2, "SIGSEGV")
    clock.now += 60
    quarantine.record_deaths([entry(repeated=False)], 3, "exit code 7")
    (row,) = quarantine.rows()
    assert (row["name"], row["workers_ended"], row["how"]) == ("deadly", 2, "exit code 7")
    clock.now += 1e6
    quarantine.record_deaths([], 9, "SIGKILL")
    with pytest.raises(Quarantined, match=r"2 times .*exit code 7.*--release 666666666666\)\."):
        judged(quarantine, 10)
    assert Quarantined.blame == "function"
    assert not Quarantined.may_repeat


def test_who_kills_a_worker_from_outside_is_no_function() -> None:
    """Nor is its caller told that it may be the function, however often it is repeated."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    for epoch in (2, 3, 4):
        quarantine.record_deaths([entry(alone=False)], epoch, "SIGKILL", from_outside=True)
        assert judged(quarantine, epoch + 1, lost=epoch)  # is repeated, alone
    quarantine.record_deaths([entry()], 5, "SIGKILL", from_outside=True)
    assert judged(quarantine, 6, lost=5)
    assert (quarantine.for_worker(), quarantine.rows()) == ([], [])
    clock.now += 3601
    quarantine.record_deaths([entry()], 7, "SIGKILL", from_outside=True)
    assert quarantine.for_worker() == []  # the earlier one is forgotten


def test_what_runs_alone_whenever_a_worker_is_killed_may_be_what_kills_it() -> None:
    """Two more such deaths are as two others."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry()], 2, "SIGKILL", from_outside=True)
    quarantine.record_deaths([entry()], 3, "SIGKILL", from_outside=True)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        judged(quarantine, 4, lost=2)
    quarantine.record_deaths([entry()], 4, "SIGKILL", from_outside=True)
    with pytest.raises(Quarantined, match=r"2 times .*SIGKILL"):
        judged(quarantine, 5)


def test_what_outlasts_its_time_alone_is_given_more() -> None:
    """So that a function which kills slowly is found as well, be others as busy as they like.

    Nobody else than calls that were lost waits longer for that, and nobody for ever.
    """
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry(alone=False, ran_s=30.0)], 2, "SIGSEGV")
    known = CrashSuspects(quarantine.for_worker(), 3)
    assert 50.0 <= known.alone_s(KEY) < 60.0
    assert known.alone_s(b"another") == 0.0
    assert not known.judge(KEY, name="deadly", lost=0)
    assert known.judge(KEY, name="deadly", lost=1)
    quarantine.record_deaths([entry(alone=True, ran_s=31.0)], 3, "SIGSEGV")
    quarantine.record_deaths([entry(alone=True, ran_s=31.0)], 4, "SIGSEGV")
    (row,) = quarantine.rows()
    assert row["workers_ended"] == 2


def test_what_takes_very_long_to_kill_does_not_hold_up_others_as_long() -> None:
    """And what it took is forgotten after an hour."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry(alone=False, ran_s=5000.0)], 2, "SIGSEGV")
    assert CrashSuspects(quarantine.for_worker(), 3).alone_s(KEY) == MAX_ALONE_S
    clock.now += 3601
    quarantine.record_deaths([], 3, "SIGKILL")
    assert CrashSuspects(quarantine.for_worker(), 4).alone_s(KEY) == 0.0


def test_a_death_is_forgotten_after_an_hour() -> None:
    """Two in a year are not a habit."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry()], 2, "SIGKILL")
    clock.now += 3601
    quarantine.record_deaths([entry()], 3, "SIGKILL")
    assert quarantine.rows() == []


@pytest.mark.parametrize("what", ["deadly", "666666", "6B6B6B6B", "all"])
def test_a_function_is_released(what: str) -> None:
    """By its name, its fingerprint or its key, in the host and in a worker that knows of it."""
    quarantine = Quarantine()
    for epoch in (2, 3):
        quarantine.record_deaths([entry()], epoch, "SIGSEGV")
    suspects = CrashSuspects(quarantine.for_worker(), 4)
    (row,) = quarantine.release(what)
    suspects.release(row["fingerprint"])
    assert not suspects.judge(KEY, FINGERPRINT, name="deadly", lost=0)
    assert not judged(quarantine, 4)
    assert quarantine.rows() == quarantine.release(what) == []


@pytest.mark.parametrize("what", ["", "66", "other", "666667"])
def test_nothing_else_is_released(what: str) -> None:
    """A few digits are not enough to mean one function."""
    quarantine = Quarantine()
    for epoch in (2, 3):
        quarantine.record_deaths([entry()], epoch, "SIGSEGV")
    assert quarantine.release(what) == []
    assert len(quarantine.rows()) == 1


def test_it_does_not_grow_for_ever() -> None:
    """The oldest of very many suspects is forgotten."""
    quarantine = Quarantine()
    for number in range(1100):
        one = FlightEntry(str(number), (number.to_bytes(16, "big"),), "uid:1", 0.0, True, True)
        quarantine.record_deaths([one], number, "SIGSEGV")
    assert len(quarantine.for_worker()) == 1000
