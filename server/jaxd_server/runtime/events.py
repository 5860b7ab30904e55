"""The event stream of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Emit = Callable[[str, dict[str, Any]], None]
"""Sends one event of a call: its kind, such as `stage`, and its JSON content."""


def SILENT(kind: str, content: dict[str, Any]) -> None:  # noqa: N802  a constant that is called
    """The event stream of a call without a listener."""


OUTPUT: Final = frozenset({"print", "warned", "logged"})
"""The kinds of events that a function itself outputs: prints, warnings, log records."""


class OutputOnce:
    """Passes on the events of a build, but output only once although it is traced repeatedly.

    Args:
        emit: receives the events.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._emitted = 0
        self._repeated = 0

    def __call__(self, kind: str, content: dict[str, Any]) -> None:
        """Passes on one event, unless it repeats earlier output."""
        if kind in OUTPUT:
            if self._repeated:
                self._repeated -= 1
                return
            self._emitted += 1
        self._emit(kind, content)

    def begin_trace(self) -> None:
        """Begins a trace, which repeats the earlier output."""
        self._repeated = self._emitted
