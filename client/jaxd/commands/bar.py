"""How far many builds are, in one line of a terminal."""

from __future__ import annotations

import sys
from typing import Any

from jaxd.progress import Progress

__all__ = ["Bar"]

_WIDTH = 20


class Bar(Progress):
    """Stands where a caller has its `Progress`.

    Args:
        total: how many builds there are.
        shown: whether stderr is a terminal; else only failures are said.
    """

    def __init__(self, total: int, shown: bool) -> None:
        super().__init__()
        self._total = total
        self._shown_at_all = shown
        self._done = 0

    def advance(self, failure: str | None = None) -> None:
        """One more is done; a failure is said in a line of its own."""
        if not self._shown_at_all:
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
        """Wipes the line out."""
        if self._shown_at_all:
            with self._lock:
                self._put("")
            self._write()

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """A call is in another stage."""
        if kind == "stage":  # why something was built is nothing for one line of many
            super().event(connection, number, kind, content)

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """A call is over; `advance` says so."""
        with self._lock:
            self._remember((connection, number))
            self._calls.pop((connection, number), None)

    def _show(self, call: Any) -> None:
        self._put(f"{self._bar()}  {call.stage} {call.function} … {call.seconds:.0f} s")

    def _bar(self) -> str:
        filled = _WIDTH * self._done // max(1, self._total)
        return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._done}/{self._total}"
