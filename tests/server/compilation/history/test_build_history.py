"""What a worker has built."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from jaxd_server.compilation.history.build_history import BuildHistory
from tests.server.builds import built, described, executable, key_of, value_part
from tests.server.staging import at_once

PROGRAM = executable()


def test_programs_of_one_key_are_one_record() -> None:
    """Oldest first."""
    build_history = BuildHistory()
    step = described()
    first, second = built(PROGRAM, 1.0), built(PROGRAM, 1)
    build_history.add(key_of(step), step, first)
    record = build_history.add(key_of(step), step, second)
    assert record.built == (first, second)
    assert build_history.find(key_of(step)) is record
    assert build_history.records() == {key_of(step): record}
    assert build_history.find(b"?") is None


def test_the_key_that_was_written_last_stands_at_the_end() -> None:
    """And the one at the front is forgotten when there are too many."""
    build_history = BuildHistory(limit=2)
    steps = [described(value_part("LR", str(n))) for n in range(3)]
    for index in (0, 1, 0, 2):
        build_history.add(key_of(steps[index]), steps[index], built(PROGRAM, 1.0))
    assert list(build_history.records()) == [key_of(steps[0]), key_of(steps[2])]
    assert len(build_history.records()) == 2


def test_only_the_last_programs_of_a_key_are_kept() -> None:
    """A function that is compiled for each call does not fill the memory."""
    build_history = BuildHistory(limit_per_key=3)
    step = described()
    for size in range(5):
        record = build_history.add(key_of(step), step, built(PROGRAM, np.zeros(size)))
    assert [str(each.arguments["x"].form) for each in record.built] == [
        "float64[2]",
        "float64[3]",
        "float64[4]",
    ]


def test_its_memory_is_bounded() -> None:
    """The oldest keys go first; the last one stays whatever its size."""
    build_history = BuildHistory(limit_bytes=20_000)
    for n in range(10):
        step = described(value_part("LR", str(n)))
        build_history.add(key_of(step), step, built(PROGRAM, "x" * 8000))
    assert len(build_history.records()) == 2
    assert build_history._nbytes == sum(
        record.nbytes for record in build_history.records().values()
    )
    build_history.add(key_of(step), step, built(PROGRAM, "x" * 100_000))
    assert list(build_history.records()) == [key_of(step)]


def test_versions_share_the_parts_that_are_equal() -> None:
    """A hundred versions of a function with a hundred helpers are no ten thousand parts."""
    build_history = BuildHistory()
    first, second = (described(value_part("A", "1"), value_part("LR", lr)) for lr in ("1", "2"))
    for step in (first, second):
        build_history.add(key_of(step), step, built(PROGRAM, 1.0))
    one, other = (record.description.parts for record in build_history.records().values())
    assert other == second.parts
    assert [a is b for a, b in zip(one, other, strict=True)] == [True, True, False]


def test_it_keeps_no_program_alive() -> None:
    """What the server drops is gone, and no longer warm."""
    program = executable()
    note = built(program, 1.0)
    program.record_run_time(0.1)
    assert (note.is_warm, note.calls) == (True, 1)
    del program
    assert (note.is_warm, note.calls) == (False, 0)


def test_large_arguments_are_described_as_well() -> None:
    """Without being remembered."""
    note = built(PROGRAM, {f"w{n}": 1.0 for n in range(4000)})
    assert len(note.skeleton) > 1 << 14
    assert str(note.arguments["x"].form) == "dict of 4000"


def test_many_threads_may_write() -> None:
    """None of them loses anything."""
    build_history = BuildHistory()
    steps = [described(value_part("LR", str(n))) for n in range(8)]
    barrier = threading.Barrier(8)

    def write(index: int) -> None:
        barrier.wait()
        for step in steps:
            build_history.add(key_of(step), step, built(PROGRAM, np.zeros(index)))

    at_once(8, write)
    assert [len(record.built) for record in build_history.records().values()] == [8] * 8


def test_a_program_of_an_earlier_process_is_not_warm_until_it_is_loaded() -> None:
    """By the name that it has on disk; others of its key stay as they are."""
    build_history = BuildHistory()
    step, program = described(), executable()
    for name, size in ((b"first", 1), (b"second", 2)):
        note = replace(built(PROGRAM, np.zeros(size)), executable=None, name=name)
        assert (note.is_warm, note.calls) == (False, 0)
        build_history.add(key_of(step), step, note)
    program.record_run_time(0.1)
    build_history.attach(key_of(step), b"second", program)
    record = build_history.find(key_of(step))
    assert record is not None
    assert [(each.is_warm, each.calls) for each in record.built] == [(False, 0), (True, 1)]


def test_a_program_that_nobody_knows_is_attached_to_nothing() -> None:
    """Its record was forgotten, which costs no more than a reason."""
    build_history = BuildHistory()
    step = described()
    build_history.attach(key_of(step), b"name", PROGRAM)
    assert len(build_history.records()) == 0
    build_history.add(key_of(step), step, built(PROGRAM, 1.0))
    build_history.attach(key_of(step), b"name", executable())
    (record,) = build_history.records().values()
    assert record.built == (built(PROGRAM, 1.0),)
