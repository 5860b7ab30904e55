from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from jaxd_server.compilation.history import build_history as module
from jaxd_server.compilation.history.build_history import (
    BuildEntry,
    BuildHistory,
    KnownFunctions,
    belongs_to,
)
from tests.ids import row
from tests.server.builds import built, described, executable, key_of, value_part
from tests.server.staging import at_once

PROGRAM = executable()


def _calls(entry: BuildEntry) -> int | None:
    """How many calls its program has answered; None when it is gone."""
    return entry.warm.calls if entry.warm else None


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
    assert _calls(note) == 1
    del program
    assert _calls(note) is None


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
        assert note.warm is None
        build_history.add(key_of(step), step, note)
    program.record_run_time(0.1)
    build_history.attach(key_of(step), b"second", program)
    record = build_history.find(key_of(step))
    assert record is not None
    assert [_calls(each) for each in record.built] == [None, 1]
    for key, name in ((b"?", b"second"), (key_of(step), b"third")):  # which nobody knows
        build_history.attach(key, name, PROGRAM)
    assert build_history.records() == {key_of(step): record}


ALICE, BOB, OWNER = "account:alice", "account:bob", "uid:7"
KEYS = [bytes([n]) * 16 for n in range(4)]


@pytest.fixture
def known_functions() -> KnownFunctions:
    """Of a server that belongs to user 7."""
    return KnownFunctions(belongs_to(7))


def test_each_sees_what_they_have_called(known_functions: KnownFunctions) -> None:
    """Also who has looked before; and the owner everything, also what nobody has called."""
    sees = known_functions.visibility(ALICE)
    assert not sees(KEYS[0])
    known_functions.record(ALICE, KEYS[0])
    known_functions.record(BOB, KEYS[1])
    known_functions.record(OWNER, KEYS[2])
    seen = {
        who: [key for key in KEYS if known_functions.visibility(who)(key)]
        for who in (ALICE, BOB, OWNER)
    }
    assert seen == {ALICE: KEYS[:1], BOB: KEYS[1:2], OWNER: KEYS}
    assert sees(KEYS[0])
    known_functions.forget(ALICE)
    assert not known_functions.visibility(ALICE)(KEYS[0])


def test_only_so_much_is_remembered(
    known_functions: KnownFunctions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was called last; and nothing of the owner."""
    monkeypatch.setattr(module, "_MAX_KEYS", 2)
    for index in (0, 1, 0, 2):
        known_functions.record(ALICE, KEYS[index])
        known_functions.record(OWNER, KEYS[index])
    sees = known_functions.visibility(ALICE)
    assert [sees(key) for key in KEYS] == [True, False, True, False]
    assert list(known_functions._known) == [ALICE]


def test_whose_a_server_is() -> None:
    """Its user's, root's, and who has that user's own token; nobody else's."""
    rows: list[tuple[str, bool]] = [
        ("uid:7", True),
        ("uid:0", True),
        ("token", True),
        ("anonymous@127.0.0.1", True),
        ("uid:8", False),
        ("uid:77", False),
        ("account:token", False),
        ("account:uid:7", False),
    ]
    for principal, is_owner in rows:
        with row((principal, is_owner)):
            assert belongs_to(7)(principal) is is_owner
