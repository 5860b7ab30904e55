"""Says on a terminal that a first call is being compiled, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

__all__ = ["Progress"]

_QUIET_S = 1.0
"""Nothing is said of a call that is answered sooner."""

_TICK_S = 0.25
_STAGES = {
    "queued": "waiting to compile",
    "trace": "tracing",
    "compile": "compiling",
    "run": "running",
}


class Progress:
    """One line on stderr for the calls that take long; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._calls: dict[tuple[object, int], _Watched] = {}
        self._lock = threading.Lock()  # guards _calls and the terminal's line
        self._ticker: threading.Thread | None = None
        self._shown = 0  # width of what stands on the line now

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Notes that call `number` of a connection entered a stage."""
        if kind != "stage" or not _is_terminal():
            return
        with self._lock:
            call = self._calls.setdefault(
                (connection, number), _Watched(str(content.get("function", "")))
            )
            call.stage = _STAGES.get(str(content.get("stage")), "working on")
            if self._ticker is None:
                self._ticker = threading.Thread(
                    target=self._tick, name="jaxd-progress", daemon=True
                )
                self._ticker.start()

    def finish(self, connection: object, number: int) -> None:
        """The call is over; a line that was shown says how long it took, and stays."""
        if not self._calls or (connection, number) not in self._calls:  # the warm path ends here
            return
        with self._lock:
            call = self._calls.pop((connection, number))
            if call.shown:
                self._write(f"jaxd: {call.function} was ready after {call.seconds:.1f} s\n")

    def _tick(self) -> None:
        wait = threading.Event().wait
        while True:
            wait(_TICK_S)
            with self._lock:
                if not self._calls:
                    self._ticker = None
                    return
                self._show(min(self._calls.values(), key=lambda call: call.started))

    def _show(self, call: _Watched) -> None:
        if call.seconds >= _QUIET_S:
            call.shown = True
            self._write(f"jaxd: {call.stage} {call.function} … {call.seconds:.0f} s")

    def _write(self, text: str) -> None:
        blank = " " * max(0, self._shown - len(text))
        self._shown = 0 if text.endswith("\n") else len(text)
        line = f"\r{text.rstrip()}{blank}" + ("\n" if text.endswith("\n") else "")
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except (OSError, ValueError):  # the terminal is gone
            return


class _Watched:
    def __init__(self, function: str) -> None:
        self.function = function
        self.stage = "working on"
        self.started = time.monotonic()
        self.shown = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
