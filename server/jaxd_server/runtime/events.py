"""The event stream of a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

Emit = Callable[[str, dict[str, Any]], None]
"""Sends one event of a call: its kind, such as `stage`, and its JSON content."""


def SILENT(kind: str, content: dict[str, Any]) -> None:  # noqa: N802  a constant that is called
    """The event stream of a call without a listener."""


OUTPUT: Final = frozenset({"print", "warned", "logged"})
"""The kinds of events that a function itself outputs: prints, warnings, log records."""


_MAX_KEPT_CHARS: Final = 1 << 15


class OutputOnce:
    """Passes on the events of a build, but output only once although it is traced repeatedly.

    Args:
        emit: receives the events; of output it is said that it is `traced`.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._emitted = 0
        self._repeated = 0
        self._kept: list[str] = []
        self._left_chars = _MAX_KEPT_CHARS

    def __call__(self, kind: str, content: dict[str, Any]) -> None:
        """Passes on one event, unless it repeats earlier output."""
        if kind in OUTPUT:
            if self._repeated:
                self._repeated -= 1
                return
            self._emitted += 1
            content = {**content, "traced": True}
            self._keep(json.dumps([kind, content]))
        self._emit(kind, content)

    def _keep(self, event: str) -> None:
        self._left_chars -= len(event)
        if self._left_chars >= 0:
            self._kept.append(event)

    @property
    def output(self) -> str:
        """What was output so far, up to a bound, for `repeat_output`; empty: nothing."""
        return "\n".join(self._kept)

    def begin_trace(self) -> None:
        """Begins a trace, which repeats the earlier output."""
        self._repeated = self._emitted


def repeat_output(output: str, emit: Emit) -> None:
    """Emits once more what `OutputOnce.output` has, and that it is `repeated`.

    Raises:
        ValueError: when it is something else.
    """
    for event in output.splitlines():
        kind, content = json.loads(event)
        if kind in OUTPUT:
            emit(kind, {**content, "repeated": True})
