"""What `make faults` prints: a row for each test, with what had to happen and how long it took.

With `FAULTS_REPORT=FILE` in the environment the table is written into that file, between two lines
that say so.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

_BEGIN: Final = "<!-- written by make faults -->"
_END: Final = "<!-- end of what make faults has written -->"

_rows: list[tuple[str, str, str, str, float, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes each row."""
    properties = dict(report.user_properties)
    if "row" not in properties or (report.when != "call" and report.passed):
        return
    outcome: str = "as expected" if report.passed else report.outcome
    if report.skipped and isinstance(report.longrepr, tuple):
        outcome = f"not run: {report.longrepr[2].removeprefix('Skipped: ')}"
    figure = str(properties.get("figure", ""))
    part, row, expected = str(properties["row"]).split("\n")
    _rows.append((part, row, expected, outcome, report.duration, figure))


@pytest.fixture(autouse=True)
def _row(request: pytest.FixtureRequest, record_property: Any) -> None:
    """Says what a test is about: in its module, its parameters and its docstring."""
    part = (request.module.__doc__ or "").partition(".")[0].partition("\n")[0]
    name = request.node.name.removeprefix("test_").replace("_", " ").replace("[", ": ").rstrip("]")
    expected = " ".join((request.function.__doc__ or "").split())
    record_property("row", f"{part}\n{name}\n{expected}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table, and writes it where that was asked for."""
    if not _rows:
        return
    text = _table()
    terminalreporter.write_line("")
    terminalreporter.write_line(text)
    target = os.environ.get("FAULTS_REPORT")
    if target:
        before, _, rest = Path(target).read_text().partition(_BEGIN)
        after = rest.partition(_END)[2]
        Path(target).write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}")


def _table() -> str:
    passed = sum(row[3] == "as expected" for row in _rows)
    cores = len(os.sched_getaffinity(0))
    seconds = sum(row[4] for row in _rows)
    where = f"Python {platform.python_version()}, jax {metadata.version('jax')}"
    lines = [
        f"{passed} of {len(_rows)} rows as expected; {seconds:.0f} s on {cores} cores, {where}."
    ]
    part = ""
    for group, row, expected, outcome, seconds, figure in _rows:
        if group != part:
            part = group
            lines += [
                "",
                f"**{group}**",
                "",
                "| fault | expected | outcome | s |",
                "|---|---|---|---|",
            ]
        told = f"{outcome}; {figure}" if figure else outcome
        lines.append(f"| {row} | {expected} | {told} | {seconds:.1f} |".replace("||", "|"))
    return "\n".join(lines)
