from __future__ import annotations

import json
from typing import Any

import pytest

from jaxd_protocol.messages.report import kept_report

SOUND: dict[str, Any] = {
    "limit_bytes": 10,
    "call_bytes": 1,
    "snapshot_bytes": 2,
    "snapshot_seconds": 0.5,
    "snapshot_age_s": None,
    "calls": 3,
    "call_seconds": 1.5,
    "limit_seconds": 600.0,
    "stopped": "",
    "lost_with_worker": {"they were found by a name": 4},
}


def test_what_a_client_keeps_is_read_as_it_is() -> None:
    """But for what does not belong there; what is missing is none."""
    assert kept_report({**SOUND, "more": "x"}) == SOUND
    assert kept_report({})["lost_with_worker"] == {}


@pytest.mark.parametrize(
    "found",
    [
        3,
        {**SOUND, "calls": "3"},
        {**SOUND, "snapshot_age_s": float("nan")},
        {**SOUND, "lost_with_worker": {"why": [1]}},
        {**SOUND, "lost_with_worker": {"\x1b[2J": 1}},
        {**SOUND, "stopped": "a\nb"},
    ],
    ids=json.dumps,
)
def test_what_is_no_report_is_refused(found: Any) -> None:
    """Neither what cannot be counted with, nor what a terminal would take for a command."""
    with pytest.raises((TypeError, ValueError)):
        kept_report(found)
