"""The file of a part's results: one JSON object a line, written as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each test; a line that was cut off counts as none."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["test"]] = one
    return found
