"""Programs that are run by `python` and by `jaxd run`, and what can be compared of that."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

JAXD_RUN = (sys.executable, "-m", "jaxd.cli", "run")
PYTHON = (sys.executable,)

_VARIES = re.compile(r"0x[0-9a-f]+|\bin \d+\.\d+s\b|\d+\.\d+ s saved")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, in a folder."""
    return subprocess.run(
        command,
        env=dict(environment),
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def comparable(text: str) -> str:
    """A text without addresses and times."""
    return _VARIES.sub("…", text)


def counts_in(text: str) -> dict[str, int]:
    """The numbers in the line with which a run ends."""
    (line,) = [line for line in text.splitlines() if line.startswith("jaxd: ") and " calls" in line]
    found = re.findall(r"([\d,]+) ([a-z. ]+?)(?:,|$)", line.removeprefix("jaxd: "))
    return {name: int(number.replace(",", "")) for number, name in found}
