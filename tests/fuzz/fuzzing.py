"""Runs targets, and saves the inputs that make them fail."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.fuzz.target import Target

FOUND: Final = Path(__file__).parent / "found"
"""Bytes over which something has stumbled once: a folder for each target, a file for each."""

SLOW_S: Final = 2.0
"""No few kilobytes may keep a thread for longer."""


class Finding(Exception):
    """Something else than an error of its own came out of a target."""


def run_input(name: str, target: Target, data: bytes) -> None:
    """Gives bytes to a target.

    Raises:
        Finding: when something is wrong with that.
    """
    for _ in range(2):  # what is slow once may have waited for the machine
        started = time.monotonic()
        try:
            target.run(data)
        except target.errors:
            pass
        except Exception as error:
            raise Finding(f"{name}: {error!r} for {data!r}") from error
        seconds = time.monotonic() - started
        if seconds <= SLOW_S:
            return
    raise Finding(f"{name}: {seconds:.1f} s for {data!r}")


def run(
    name: str, target: Target, inputs: Iterable[bytes], seconds: float, keep: bool = False
) -> tuple[int, list[str]]:
    """Tries one input after the other until the time is over, and all examples have been.

    Args:
        name: of the target.
        target: what is tried.
        inputs: without end.
        seconds: for all of it.
        keep: whether to write what it stumbles over, each kind once.

    Returns:
        How many were tried, and the tracebacks of what was found.
    """
    until = 0.0  # once the first is done, which may have to start something
    count, found = 0, dict[str, str]()
    for data in inputs:
        try:
            run_input(name, target, data)
        except Finding as finding:
            text = "".join(traceback.format_exception(finding))
            kind = _kind(finding)
            if kind not in found and keep:
                _keep(name, data)
            found.setdefault(kind, text)
        count += 1
        until = until or time.monotonic() + seconds
        if time.monotonic() > until and count > len(target.seeds):
            break
    return count, list(found.values())


def _kind(finding: Finding) -> str:
    """The same for all that fail in the same place."""
    cause = finding.__cause__
    if cause is None or cause.__traceback__ is None:
        return "slow"
    last = traceback.extract_tb(cause.__traceback__)[-1]
    return f"{type(cause).__name__} {last.filename}:{last.lineno}"


def _keep(name: str, data: bytes) -> None:
    folder = FOUND / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
