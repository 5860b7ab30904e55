"""The frozen counters."""

from __future__ import annotations

import pytest

from jaxd import Statistics

REPORT = {name: index for index, name in enumerate(Statistics._fields)}


def test_a_report_becomes_a_snapshot() -> None:
    """What a newer server may report beyond it is left out."""
    found = Statistics.from_report({**REPORT, "invented_later": 1})
    assert found._asdict() == REPORT


def test_a_report_that_lacks_a_counter_is_an_error() -> None:
    """It is not filled up with guesses."""
    with pytest.raises(KeyError, match="traces"):
        Statistics.from_report({name: 0 for name in REPORT if name != "traces"})


def test_the_promised_counters_are_there() -> None:
    """Those that the documents name."""
    promised = {
        "calls", "traces", "compiles", "executable_hits", "executable_loads", "executables",
        "functions", "values", "bytes_received", "bytes_sent", "uptime_s", "epoch",
        "lowers", "programs", "programs_shared", "disk_bytes", "disk_files",
        "trace_s", "compile_s", "load_s", "saved_s",
    }  # fmt: skip
    assert promised <= set(Statistics._fields)
