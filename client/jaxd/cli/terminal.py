"""Terminal output of commands: durations, truncated texts and a progress bar of builds."""

from __future__ import annotations

import sys
from typing import Any

from jaxd.events.progress import Progress

_BAR_WIDTH = 20


def duration(seconds: float) -> str:
    """``0.25 s``, ``8.2 s``, ``3 min``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def ago(seconds: float | None) -> str:
    """``3 min ago``; None is never."""
    return "never" if seconds is None else f"{duration(seconds)} ago"


def truncate(text: str, width: int) -> str:
    """The text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


class BuildBar(Progress):
    """A progress bar of many builds, in one line. It replaces the `Progress` of a caller.

    Args:
        total: how many builds there are.
        shown: whether stderr is a terminal; else only failures are printed.
    """

    def __init__(self, total: int, shown: bool) -> None:
        super().__init__()
        self._total = total
        self._is_shown = shown
        self._done = 0

    def advance(self, failure: str | None = None) -> None:
        """Counts one more build; a failure is printed in a line of its own."""
        if not self._is_shown:
            if failure is not None:
                print(failure, file=sys.stderr)
            return
        with self._lock:
            self._done += 1
            if failure is not None:
                self._put(f"{failure}\n")
            self._put(self._bar())
        self._write()

    def close(self) -> None:
        """Clears the line."""
        if self._is_shown:
            with self._lock:
                self._put("")
            self._write()

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """A call is in another stage."""
        if kind == "stage":  # one line has no room for the reasons of many builds
            super().event(connection, number, kind, content)

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """A call is over; `advance` shows it."""
        with self._lock:
            self._finished[connection, number] = None
            self._calls.pop((connection, number), None)

    def _show(self, call: Any) -> None:
        self._put(f"{self._bar()}  {call.stage} {call.function} … {call.seconds:.0f} s")

    def _bar(self) -> str:
        filled = _BAR_WIDTH * self._done // max(1, self._total)
        return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {self._done}/{self._total}"
