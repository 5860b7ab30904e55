"""Shows on a terminal that a call is being compiled, for how long, and why.

And how much of a large message has been sent or received, when that takes long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any, Final, Protocol

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork

_SHOW_AFTER_S = 1.0
"""Nothing is said of a call that is answered sooner."""

_TICK_S = 0.25
_TERMINAL_S = 0.1
"""How long a call waits for its turn to write; after Ctrl-S nobody waits longer than this."""

_MAX_FINISHED = 256
_STAGES = {
    "queued": "waiting to compile",
    "trace": "tracing",
    "lower": "lowering",
    "compile": "compiling",
    "run": "running",
}

_BUILD_STAGES: Final = ("tracing", "lowering", "compiling")
_MIN_STAGE_S: Final = 0.05

_CallKey = tuple[object, int]


class TransferSource(Protocol):
    """A connection that reports its current transfer."""

    def transfer_progress(self) -> tuple[str, int, int] | None:
        """A word for it, how many bytes have been moved, and how many there are."""


class Progress:
    """A progress line on stderr for long calls and transfers; nothing if it is no terminal.

    Attributes:
        is_active: whether calls have stages, or a transfer is shown: then `finish` must be called.
    """

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the calls of the parent, and its thread, as the child of a fork must."""
        self._calls: dict[_CallKey, _CallProgress] = {}
        self._transfers: dict[TransferSource, float] = {}  # and when they began
        self._finished = BoundedDict[_CallKey, None](_MAX_FINISHED)  # late events are ignored
        self._lock = threading.Lock()  # guards all but _terminal; nobody writes under it
        self._ticker: threading.Thread | None = None
        self._shows_transfer = False
        self.is_active = False
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
            call = self._calls.setdefault(key, _CallProgress(str(content.get("function", ""))))
            if kind == "built":
                call.stage_times = _build_text(content)
            else:
                call.enter(_STAGES.get(str(content.get("stage")), "working on"))
            self.is_active = True
            self._start_ticker()

    def transfer(self, connection: TransferSource) -> None:
        """Notes that a large message begins to go out over a connection, or to come in."""
        if _is_terminal():
            with self._lock:
                self._transfers.setdefault(connection, time.monotonic())
                self._start_ticker()

    def _start_ticker(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="jaxd-progress", daemon=True)
            self._ticker.start()

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """The call is over for its caller; events that still come for it are ignored.

        A line that was shown says how long the call took, or why it was compiled, and stays; it
        is wiped out when the call has no result: not `ready`.
        """
        key = (connection, number)
        if ready and key not in self._calls and not self._shows_transfer:
            return
        with self._lock:
            self._finished[key] = None
            call = self._calls.pop(key, None)
            self._wipe_transfer()
            self.is_active = bool(self._calls)
            if call is not None and (call.shown or (call.stage_times and ready)):
                end = call.stage_times or f"{call.function} was ready after {call.seconds:.1f} s"
                end += call.times()
                self._put(f"jaxd: {end}\n" if ready else "")
        self._write()

    def clear_line(self) -> None:
        """Clears the progress line before other output is written."""
        if self._shown:
            with self._lock:
                self._put("")
            self._write()

    def _tick(self) -> None:
        wait = threading.Event().wait
        while True:
            wait(_TICK_S)
            with self._lock:
                is_moving = self._show_transfer()
                if not self._calls and not self._transfers:
                    self._ticker = None
                elif self._calls and not is_moving:
                    self._show(min(self._calls.values(), key=lambda call: call.started))
                ended = self._ticker is None
            self._write()
            if ended:
                return

    def _show_transfer(self) -> bool:
        """Has the oldest transfer on the line if it takes long; those that are over go."""
        shown = False
        for connection, started in list(self._transfers.items()):
            found = connection.transfer_progress()
            if found is None:
                del self._transfers[connection]
            elif not shown and time.monotonic() - started >= _SHOW_AFTER_S:
                self._put(f"jaxd: {_transfer_text(*found)}")
                self._shows_transfer = self.is_active = shown = True
        if not shown:
            self._wipe_transfer()
        return shown

    def _wipe_transfer(self) -> None:
        if self._shows_transfer:
            self._put("")
            self._shows_transfer = False

    def _show(self, call: _CallProgress) -> None:
        if call.seconds >= _SHOW_AFTER_S:
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


class _CallProgress:
    def __init__(self, function: str) -> None:
        self.function = function
        self.stage = "working on"
        self.started = time.monotonic()
        self.shown = False
        self.stage_times = ""  # why it was compiled, when that took long
        self._stage_started: list[tuple[str, float]] = []

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        self.stage = stage
        self._stage_started.append((stage, time.monotonic()))

    def times(self) -> str:
        """How long the stages of the build took that took long, such as ` (tracing 0.6 s, …)`."""
        ends = [*(at for _, at in self._stage_started[1:]), time.monotonic()]
        seconds: dict[str, float] = {}
        for (stage, begun), ended in zip(self._stage_started, ends, strict=False):
            seconds[stage] = seconds.get(stage, 0.0) + ended - begun
        told = [
            f"{stage} {seconds[stage]:.1f} s"
            for stage in _BUILD_STAGES
            if seconds.get(stage, 0.0) >= _MIN_STAGE_S
        ]
        return f" ({', '.join(told)})" if told else ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _transfer_text(word: str, moved: int, total: int) -> str:
    """Such as `sending 1.2 of 4.0 GB`."""
    unit = next((unit for unit in _UNITS if total >= unit), min(_UNITS))
    return f"{word} {moved / unit:.1f} of {total / unit:.1f} {_UNITS[unit]}"


_UNITS: Final = {10**9: "GB", 10**6: "MB", 10**3: "kB"}


def _build_text(content: dict[str, Any]) -> str:
    """What the server says of a long build, as one line whatever it says."""
    function, reason = content.get("function", ""), content.get("reason", "")
    text = f"compiled {function} in {content.get('seconds', 0.0):.1f} s: {reason}"
    return " ".join(text.split())


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
