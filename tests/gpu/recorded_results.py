"""A plugin of pytest: writes down each test's result as it comes, and leaves out what has one.

`GPU_RESULTS` names the file, one JSON object a line; once `GPU_UNTIL`, seconds since the epoch, has
passed, no further test begins, and those that are left have no result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from tests.gpu.results import read

_NO_TIME: Final = "no time is left"
_LONGEST: Final = 3000
"""Characters of a failure: its end says most."""


def _file() -> Path:
    return Path(os.environ["GPU_RESULTS"])


def _finished(again: Collection[str]) -> set[str]:
    return {name for name, one in read(_file()).items() if one["outcome"] not in again}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What has a result is not run again; with `GPU_AGAIN` what failed is."""
    finished = _finished({"failed"} if os.environ.get("GPU_AGAIN") else ())
    kept = [item for item in items if item.nodeid not in finished]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in finished])
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """No test begins after the end of the time."""
    if time.time() > float(os.environ["GPU_UNTIL"]):
        pytest.skip(_NO_TIME)


class _Writer:
    """Of the results of all tests, also of those that other processes run."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        text = str(report.longrepr or "")
        if report.skipped:
            text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else text
            if _NO_TIME in text:
                return
        line = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 3),
            "text": text[-_LONGEST:],
        }
        with _file().open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """One process writes: the one that the others report to."""
    if not hasattr(config, "workerinput"):
        with _file().open("a+b") as file:  # which may end in a line that was cut off
            if file.tell():
                file.write(b"\n")
        config.pluginmanager.register(_Writer())
