from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_protocol.errors import Quarantined, WorkerLost
from jaxd_server.execution.crash_guard import CrashGuard, CrashSuspects
from jaxd_server.runtime.flight_recorder import FlightEntry, FlightRecorder
from tests.server.in_process import PipelineHarness, Source

SEEN: list[FlightEntry] = []
"""What the host would have read while a function was traced."""


@pytest.fixture
def box() -> FlightRecorder:
    """What the harness writes down."""
    SEEN.clear()
    return FlightRecorder.create()


@pytest.fixture
def harness(box: FlightRecorder) -> Iterator[PipelineHarness]:
    """A pipeline that has a black box."""
    harness = PipelineHarness()
    harness.pipeline.crash_guard = CrashGuard(harness.admission, None, box)
    yield harness
    harness.close()


def looking(box: FlightRecorder) -> Source:
    """A function that looks at the box while it is traced, and once it runs if it is negative."""
    source = Source(lambda x: x + 1)
    describe = source.describe

    def told(key: bytes) -> Any:
        SEEN.extend(box.entries())
        return describe(key)

    source.describe = told  # type: ignore[method-assign]
    return source


def suspect(source: Source, deaths: int) -> CrashSuspects:
    ids = [source.fingerprint.hex(), source.key.hex()]
    row = {"name": "it", "ids": ids, "deaths": deaths, "how": "SIGSEGV", "epoch": 1}
    return CrashSuspects([{**row, "quarantined": deaths > 1}], 2)


def test_a_cold_call_is_written_down_before_its_function_is_known(
    harness: PipelineHarness, box: FlightRecorder
) -> None:
    """By its key; it is gone when the call is over. A warm one is not written down at all."""
    source = looking(box)
    assert harness.value(source, 1.0) == 2.0
    (entry,) = SEEN
    assert (entry.ids, entry.is_repeated, entry.is_alone) == ((source.key,), False, False)
    assert box.entries() == []
    box._free.clear()
    assert harness.value(source, 2.0) == 3.0


def test_a_call_that_is_repeated_runs_alone(harness: PipelineHarness, box: FlightRecorder) -> None:
    """Warm or not; and it is written down so."""
    source = looking(box)
    for _ in range(2):
        source.asked.clear()
        harness.pipeline.functions._functions.clear()
        harness.answer(source.call((1.0,), lost=1))
    assert [(entry.is_repeated, entry.is_alone) for entry in SEEN] == [(True, True)] * 2
    assert not harness.admission.is_barred


def test_a_suspect_is_admitted_once_more_alone(
    harness: PipelineHarness, box: FlightRecorder
) -> None:
    """Also when that is known only with its fingerprint, which other options have as well."""
    source = looking(box)
    harness.pipeline.crash_guard.suspects = suspect(source, 1)
    harness.pipeline.crash_guard.suspects._known.pop(source.key)
    assert harness.value(source, 1.0) == 2.0
    assert box.entries() == []
    assert harness.admission.running() == []


def test_what_outlasted_its_time_is_waited_for_longer(
    harness: PipelineHarness, box: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it takes to see whether it is what ends workers."""
    source = looking(box)
    waits: list[float] = []
    acquire_exclusive = harness.admission.acquire_exclusive

    def noted(*args: Any, alone_s: float) -> Any:
        waits.append(alone_s)
        return acquire_exclusive(*args, alone_s=alone_s)

    monkeypatch.setattr(harness.admission, "acquire_exclusive", noted)
    harness.answer(source.call((1.0,), lost=1))
    slow = suspect(source, 1)
    for known in slow._known.values():
        object.__setattr__(known, "ran_s", 30.0)
    harness.pipeline.crash_guard.suspects = slow
    harness.answer(source.call((1.0,), lost=1))
    assert waits == [0.0, 50.0]


def test_what_is_in_quarantine_is_not_run(harness: PipelineHarness, box: FlightRecorder) -> None:
    """Nor asked for."""
    source = looking(box)
    harness.pipeline.crash_guard.suspects = suspect(source, 2)
    with pytest.raises(Quarantined, match="--release"):
        harness.value(source, 1.0)
    assert source.asked == []
    assert (SEEN, box.entries(), harness.admission.running()) == ([], [], [])


def test_without_a_box_all_is_the_same() -> None:
    """But that nobody reads it."""
    harness = PipelineHarness()
    source = Source(lambda x: x + 1)
    harness.pipeline.crash_guard.suspects = suspect(source, 1)
    assert harness.value(source, 1.0) == 2.0
    harness.answer(source.call((1.0,), lost=1))
    harness.close()


def test_a_suspect_that_a_callback_calls_does_not_wait_to_be_alone(
    harness: PipelineHarness, box: FlightRecorder
) -> None:
    """It belongs to a call that runs, and that waits for it; it is written down all the same."""
    source = looking(box)
    harness.pipeline.crash_guard.suspects = suspect(source, 1)
    outer = source.call((1.0,), lost=1)
    harness.pipeline.crash_guard.admit(outer)
    harness.answer(source.call((1.0,), lost=1, inside=True))
    inner = SEEN[-1]
    assert (inner.is_repeated, inner.is_alone) == (True, False)
    harness.admission.release(outer)
    assert box.entries() == []


KEY, FINGERPRINT = b"k" * 16, b"f" * 16


def suspects(deaths: int = 1, epoch: int = 3) -> CrashSuspects:
    """A worker that follows one which a function has ended."""
    row = {
        "name": "deadly",
        "ids": [FINGERPRINT.hex(), KEY.hex()],
        "deaths": deaths,
        "how": "SIGSEGV",
        "epoch": 2,
        "quarantined": deaths > 1,
    }
    return CrashSuspects([row], epoch)


@pytest.mark.parametrize("ids", [(KEY,), (FINGERPRINT, b"o" * 16)])
def test_a_suspect_is_known_by_key_and_by_fingerprint(ids: tuple[bytes, ...]) -> None:
    """Other options do not make another function of it; another code does."""
    assert suspects().judge(*ids, name="deadly", lost=0)
    assert not suspects().judge(b"o" * 16, name="deadly", lost=0)
    assert not CrashSuspects().judge(*ids, name="deadly", lost=0)


@pytest.mark.parametrize("lost", [1, 2])
def test_what_was_under_way_runs_alone(lost: int) -> None:
    """Whatever it is, and however often it was a bystander."""
    assert CrashSuspects().judge(KEY, name="innocent", lost=lost)
    assert suspects(epoch=9).judge(KEY, name="deadly", lost=lost)


def test_the_caller_learns_that_it_was_repeated() -> None:
    """With what the last worker died of."""
    assert suspects().judge(KEY, name="deadly", lost=1)
    with pytest.raises(WorkerLost, match=r"while nothing else ran \(SIGSEGV\).*JAXD_INLINE=1\."):
        suspects().judge(KEY, name="deadly", lost=2)
    known = suspects(deaths=2)
    for lost in (0, 1, 2):
        with pytest.raises(Quarantined, match=r"JAXD_INLINE=1.*--release 666666666666\)\."):
            known.judge(KEY, name="deadly", lost=lost)
    known.release(FINGERPRINT.hex())
    assert not known.judge(KEY, FINGERPRINT, name="deadly", lost=0)
