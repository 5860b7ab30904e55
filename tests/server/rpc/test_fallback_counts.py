"""What clients report of calls that they ran themselves, and of programs that they compared."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd import Client
from jaxd.cli.commands.status import _counter_lines
from jaxd.errors import ConnectionLost, JaxdError


@pytest.mark.parametrize("counts", [(-1, 0), (1, 1 << 41), (1.5, 0), (True, 0), ("1", 0)])
def test_no_client_reports_what_it_likes(client: Client, counts: tuple[Any, Any]) -> None:
    """What is no number of calls ends the connection, and counts for nothing."""
    before = client.statistics()
    session = client.caller.session
    assert session.store is not None
    session.notify(session.store, "fell_back", *counts)
    try:
        after = client.statistics()
    except (ConnectionLost, JaxdError):
        after = client.statistics()
    assert after.fallback_calls == before.fallback_calls
    assert after.fallback_functions == before.fallback_functions


@pytest.mark.parametrize("counts", [(1,), (1, 0, 0, 0), (-1, 0, 0), (True, 0, 0), ("1", 0, 0)])
def test_nor_of_programs_that_it_compared(client: Client, counts: tuple[Any, ...]) -> None:
    """The same: it counts for nothing."""
    before = client.statistics()
    session = client.caller.session
    assert session.store is not None
    session.notify(session.store, "verified", *counts)
    try:
        after = client.statistics()
    except (ConnectionLost, JaxdError):
        after = client.statistics()
    assert after.verified_programs == before.verified_programs


def test_jaxd_status_tells_of_compared_programs() -> None:
    """Where there were any."""
    assert not any("verified" in line for line in _counter_lines({"calls": 3}))
    lines = _counter_lines({"verified_programs": 1200, "incomparable_programs": 1})
    assert "verified  1,200 programs, 0 mismatches, 1 not comparable" in lines


def test_jaxd_status_says_so() -> None:
    """Where there were any."""
    assert not any("fell back" in line for line in _counter_lines({"calls": 3}))
    lines = _counter_lines({"calls": 3, "fallback_calls": 1200, "fallback_functions": 2})
    assert "fell back 1,200 calls of 2 functions ran in their clients' processes" in lines
