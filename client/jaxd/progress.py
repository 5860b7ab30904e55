"""Says on a terminal that a first call is being compiled, for how long, and in the end why."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

from jaxd.forking import forget_after_fork

__all__ = ["Progress"]

_QUIET_S = 1.0
"""Nothing is said of a call that is answered sooner."""

_TICK_S = 0.25
_TERMINAL_S = 0.1
"""How long a call waits for its turn to write; after Ctrl-S nobody waits longer than this."""

_MAX_FINISHED = 256
_STAGES = {
    "queued": "waiting to compile",
    "trace": "tracing",
    "compile": "compiling",
    "run": "running",
}

_Key = tuple[object, int]


class Progress:
    """One line on stderr for the calls that take long; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the calls of the parent, and its thread, as the child of a fork must."""
        self._calls: dict[_Key, _Watched] = {}
        self._finished: dict[_Key, None] = {}  # in order; their late events are ignored
        self._lock = threading.Lock()  # guards all but _terminal; nobody writes under it
        self._ticker: threading.Thread | None = None
        self._shown = 0  # width of what stands on the line when all of _texts is written
        self._texts: deque[str] = deque()  # not yet written
        self._terminal = threading.Lock()  # held while writing, by one for all

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Notes that call `number` of a connection entered a stage, or why it was compiled."""
        if kind not in ("stage", "built") or not _is_terminal():
            return
        key = (connection, number)
        with self._lock:
            if key in self._finished:
                return
            call = self._calls.setdefault(key, _Watched(str(content.get("function", ""))))
            if kind == "built":
                call.built = _reason(content)
            else:
                call.stage = _STAGES.get(str(content.get("stage")), "working on")
            if self._ticker is None:
                self._ticker = threading.Thread(
                    target=self._tick, name="jaxd-progress", daemon=True
                )
                self._ticker.start()

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """The call is over for its caller; events that still come for it are ignored.

        A line that was shown says how long the call took, or why it was compiled, and stays; it
        is wiped out when the call has no result: not `ready`.
        """
        key = (connection, number)
        if ready and key not in self._calls:  # the warm path ends here
            return
        with self._lock:
            self._remember(key)
            call = self._calls.pop(key, None)
            if call is not None and (call.shown or (call.built and ready)):
                end = call.built or f"{call.function} was ready after {call.seconds:.1f} s"
                self._put(f"jaxd: {end}\n" if ready else "")
        self._write()

    def _remember(self, key: _Key) -> None:
        self._finished[key] = None
        if len(self._finished) > _MAX_FINISHED:
            del self._finished[next(iter(self._finished))]

    def _tick(self) -> None:
        wait = threading.Event().wait
        while True:
            wait(_TICK_S)
            with self._lock:
                if not self._calls:
                    self._ticker = None
                    return
                self._show(min(self._calls.values(), key=lambda call: call.started))
            self._write()

    def _show(self, call: _Watched) -> None:
        if call.seconds >= _QUIET_S:
            call.shown = True
            self._put(f"jaxd: {call.stage} {call.function} … {call.seconds:.0f} s")

    def _put(self, text: str) -> None:
        """Has `text` written over what stands on the line."""
        line = text.rstrip("\n")
        blank = " " * max(0, self._shown - len(line))
        self._shown = 0 if text.endswith("\n") else len(line)
        self._texts.append(f"\r{line}{blank}" + text[len(line) :] + ("" if text else "\r"))

    def _write(self) -> None:
        """Writes what is to be written, unless another thread is at it and will do so."""
        while self._texts and self._terminal.acquire(timeout=_TERMINAL_S):
            try:
                while self._texts:
                    sys.stderr.write(self._texts.popleft())
                    sys.stderr.flush()
            except (OSError, ValueError):  # the terminal is gone
                self._texts.clear()
            finally:
                self._terminal.release()


class _Watched:
    def __init__(self, function: str) -> None:
        self.function = function
        self.stage = "working on"
        self.started = time.monotonic()
        self.shown = False
        self.built = ""  # why it was compiled, when that took long

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _reason(content: dict[str, Any]) -> str:
    """What the server says of a long build, as one line whatever it says."""
    function, reason = content.get("function", ""), content.get("reason", "")
    text = f"compiled {function} in {content.get('seconds', 0.0):.1f} s: {reason}"
    return " ".join(text.split())


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
