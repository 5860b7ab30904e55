from __future__ import annotations

import json
import math
from typing import Any

import pytest

from jaxd_server.processes.supervision.untrusted_report import is_number, printable, sanitize_report
from tests.ids import row


def test_what_is_no_number_of_any_use_is_left_out() -> None:
    """Adding it up, writing it as JSON or as a float would fail, for all or for some."""
    rows: list[Any] = [10**400, -(10**400), 2**63, math.inf, -math.inf, math.nan, "7", None, [7]]
    for value in rows:
        with row(value):
            assert not is_number(value)
            call = {"function": "f", "seconds": value}
            assert sanitize_report({"run_s": value, "running": [call]}) == {"running": []}


@pytest.mark.parametrize("value", [0, -1, 0.5, 2**63 - 1, -1e18, True])
def test_what_can_be_said_of_a_worker_is_believed(value: float) -> None:
    """And can be added to what others say, and written."""
    assert sanitize_report({"run_s": value}) == {"run_s": value}
    json.dumps(value + 1000 * (2**63 - 1))


def test_counts_are_whole() -> None:
    """Seconds need not be."""
    said = {"principals": [{"connections": 0.5, "sessions": 1}, {"connections": 2, "sessions": 1}]}
    assert sanitize_report(said) == {"principals": [{"connections": 2, "sessions": 1}]}
    assert sanitize_report({"running": [{"function": "f", "seconds": 2}]})["running"]


def test_no_list_and_no_name_is_without_end() -> None:
    """Whoever reads a status of all has to get through what one of them says."""
    calls = [{"function": "f" * 10_000, "seconds": 1.0}] * 10_000
    found = sanitize_report(
        {"running": calls} | {f"made_up_{number}": 1 for number in range(10_000)}
    )
    assert len(found["running"]) == 500
    assert len(found["running"][0]["function"]) == 1000
    assert len(found) == 201


def test_names_are_like_those_of_what_is_counted() -> None:
    """Others do something to a terminal, or to a page."""
    assert sanitize_report({"\x1b[2J": 1, "Calls": 1, "": 1, "a" * 65: 1, "calls": 1}) == {
        "calls": 1
    }


def test_a_text_can_be_shown() -> None:
    """Anything else stays what it is."""
    assert printable("\x1b[2Jf\r") == "?[2Jf?"
    assert printable(7) == 7
