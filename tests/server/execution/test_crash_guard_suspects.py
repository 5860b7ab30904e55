from __future__ import annotations

import pytest

from jaxd_protocol.errors import Quarantined, WorkerLost
from jaxd_server.execution.crash_guard import CrashSuspects

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


def test_what_is_in_quarantine_is_not_called() -> None:
    """Until it is released."""
    known = suspects(deaths=2)
    for lost in (0, 1, 2):
        with pytest.raises(Quarantined, match=r"JAXD_INLINE=1.*--release 666666666666\)\."):
            known.judge(KEY, name="deadly", lost=lost)
    known.release(FINGERPRINT.hex())
    assert not known.judge(KEY, FINGERPRINT, name="deadly", lost=0)
