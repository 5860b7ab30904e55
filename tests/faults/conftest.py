"""What `make faults` prints: a row for each test, with what had to happen and how long it took.

With `FAULTS_REPORT=FILE` in the environment the table is written into that file, between two lines
that say so. Parts of which no test has run stay there as they are.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
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
    text = _table(_parts())
    terminalreporter.write_line("")
    terminalreporter.write_line(text)
    target = os.environ.get("FAULTS_REPORT")
    if target:
        before, _, rest = Path(target).read_text().partition(_BEGIN)
        old, _, after = rest.partition(_END)
        text = _table({**_parts_in(old), **_parts()})
        Path(target).write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}")


def _parts() -> dict[str, list[str]]:
    """The rows of each part, as they are shown."""
    parts: dict[str, list[str]] = {}
    for part, row, expected, outcome, seconds, figure in _rows:
        told = f"{outcome}; {figure}" if figure else outcome
        shown = f"| {row} | {expected} | {told} | {seconds:.1f} |".replace("||", "|")
        parts.setdefault(part, []).append(shown)
    return parts


def _parts_in(text: str) -> dict[str, list[str]]:
    """The same of a table that was written before."""
    titles = re.split(r"^\*\*(.*)\*\*$", text, flags=re.MULTILINE)[1:]
    rows = (re.findall(r"^\|.*\d \|$", each, re.MULTILINE) for each in titles[1::2])
    return dict(zip(titles[::2], rows, strict=True))


def _table(parts: Mapping[str, Sequence[str]]) -> str:
    rows = [row.split(" | ") for part in parts.values() for row in part]
    passed = sum(row[2].startswith("as expected") for row in rows)
    cores = len(os.sched_getaffinity(0))
    seconds = sum(float(row[3].rstrip(" |")) for row in rows)
    where = f"Python {platform.python_version()}, jax {metadata.version('jax')}"
    all_s = f"{seconds:.0f} s on {cores} cores"
    lines = [f"{passed} of {len(rows)} rows as expected; {all_s}, {where}."]
    head = ["| fault | expected | outcome | s |", "|---|---|---|---|"]
    for part, shown in parts.items():
        lines += ["", f"**{part}**", "", *head, *shown]
    return "\n".join(lines)
