"""A plugin of pytest that writes what became of each test, line by line, as it happens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Outcomes:
    """Writes one line for each test.

    Args:
        file: where to.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Notes the worst of setup, call and teardown, and writes it at the end of the test."""
        if report.outcome != "passed" and report.nodeid not in self._failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._failed[report.nodeid] = f"{report.outcome}: {getattr(crash, 'message', '')[:500]}"
        if report.when == "teardown":
            outcome = self._failed.pop(report.nodeid, "passed")
            with self._file.open("a") as opened:
                opened.write(json.dumps([report.nodeid, outcome]) + "\n")


def pytest_configure(config: Any) -> None:
    """Where the run is one of the corpus."""
    config.pluginmanager.register(Outcomes(Path(os.environ["CORPUS_OUTCOMES"])))
