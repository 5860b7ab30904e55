"""What clients report of calls that they ran themselves, and of programs that they compared."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd import Client
from jaxd.cli.commands.status import _counter_lines
from jaxd.errors import ConnectionLost, JaxdError


@pytest.mark.parametrize(
    ("verb", "counts"),
    [
        *(("fell_back", counts) for counts in ((-1, 0), (1, 1 << 41), (1.5, 0), (True, 0))),
        *(("fell_back", counts) for counts in (("1", 0),)),
        *(("verified", counts) for counts in ((1,), (1, 0, 0, 0), (-1, 0, 0), (True, 0, 0))),
        *(("verified", counts) for counts in (("1", 0, 0),)),
    ],
)
def test_no_client_reports_what_it_likes(
    client: Client, verb: str, counts: tuple[Any, ...]
) -> None:
    """What is no number of calls, or programs, ends the connection, and counts for nothing."""

    def counted() -> tuple[int, ...]:
        found = client.statistics()
        return found.fallback_calls, found.fallback_functions, found.verified_programs

    before = counted()
    session = client.caller.session
    assert session.store is not None
    session.notify(session.store, verb, *counts)
    try:
        after = counted()
    except (ConnectionLost, JaxdError):
        after = counted()
    assert after == before


def test_jaxd_status_says_so() -> None:
    """Where there were any."""
    assert not any("fell back" in one or "verified" in one for one in _counter_lines({"calls": 3}))
    lines = _counter_lines(
        {"fallback_calls": 1200, "fallback_functions": 2}
        | {"verified_programs": 1200, "incomparable_programs": 1}
    )
    assert "fell back 1,200 calls of 2 functions ran in their clients' processes" in lines
    assert "verified  1,200 programs, 0 mismatches, 1 not comparable" in lines
