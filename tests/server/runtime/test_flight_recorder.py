from __future__ import annotations

import os

import pytest

from jaxd_server.runtime.flight_recorder import FlightRecorder

KEY, FINGERPRINT = b"k" * 16, b"f" * 16


def begin(
    box: FlightRecorder, key: bytes = KEY, *, repeated: bool = False, alone: bool = False
) -> int:
    return box.begin(key, "uid:7", is_repeated=repeated, is_alone=alone)


def test_the_host_reads_what_the_worker_has_written() -> None:
    """From another mapping of the same file, which outlives the one that wrote."""
    host = FlightRecorder.create()
    worker = FlightRecorder(os.dup(host.descriptor))
    place = begin(worker, repeated=True, alone=True)
    worker.identify(place, FINGERPRINT, "størrelse")
    del worker
    (entry,) = host.entries()
    assert entry[:3] == ("størrelse", (FINGERPRINT, KEY), "uid:7")
    assert (entry.is_repeated, entry.is_alone) == (True, True)
    assert 0 <= entry.seconds < 60
    host.close()


def test_a_call_is_there_as_long_as_it_runs() -> None:
    """The oldest first, by its key at first; one call more than there are places takes nobody's."""
    box = FlightRecorder.create()
    first, second = begin(box), begin(box, b"l" * 16)
    assert [entry.ids for entry in box.entries()] == [(KEY,), (b"l" * 16,)]
    assert box.entries()[0].function == "(unknown function)"
    box.end(first)
    assert [entry.ids for entry in box.entries()] == [(b"l" * 16,)]
    box.end(second)
    assert box.entries() == []
    box = FlightRecorder.create()
    places = [begin(box) for _ in range(257)]
    assert places[-1] == -1
    box.identify(-1, FINGERPRINT, "late")
    box.clear_alone(-1)
    box.end(-1)
    assert len(box.entries()) == 256
    for place in places:
        box.end(place)
    assert begin(box) >= 0


def test_a_call_that_others_have_joined_is_not_alone() -> None:
    """Also when its function becomes known only afterwards; names of any length are cut to fit."""
    box = FlightRecorder.create()
    place = begin(box, alone=True)
    box.clear_alone(place)
    box.identify(place, FINGERPRINT, "step")
    assert not box.entries()[0].is_alone
    box = FlightRecorder.create()
    place = box.begin(KEY, "é" * 100, is_repeated=False, is_alone=False)
    box.identify(place, FINGERPRINT, "ü" * 1000)
    (entry,) = box.entries()
    assert entry.function.startswith("ü" * 70)
    assert entry.principal.startswith("é" * 30)


def test_who_has_values() -> None:
    """As they were told last; too many names are one that nobody has."""
    box = FlightRecorder.create()
    assert box.owners() == frozenset()
    box.own({"uid:1", "uid:2"})
    assert box.owners() == {"uid:1", "uid:2"}
    box.own(())
    assert box.owners() == frozenset()
    box.own({f"principal {number}" for number in range(1000)})
    assert box.owners() == {"many"}
    assert box.entries() == []


@pytest.mark.parametrize("data", [b"5", b"[[]]", b"[" * 4000, b"\xff", b"7" * 4092])
def test_who_has_values_is_not_known_when_nonsense_stands_there(data: bytes) -> None:
    """The worker can write there what it likes."""
    box = FlightRecorder.create()
    box.own({"uid:1"})
    box._memory[:4] = len(data).to_bytes(4, "little")
    box._memory[4 : 4 + len(data)] = data
    assert box.owners() == {"unknown"}
