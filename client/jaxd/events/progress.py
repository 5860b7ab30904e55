"""Shows on a terminal, or in a notebook, that a call is being compiled, for how long, and why.

Also how much of a large message has been sent or received, when that takes long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork

_SHOW_AFTER_S = 1.0
"""Nothing is shown for a call that is answered sooner."""

_TICK_S = 0.25
_DISPLAY_S = 0.1
"""How long a call waits for its turn to write, also while Ctrl-S stops the terminal."""

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
        """A verb, how many bytes have been moved, and how many there are; None when it is over."""


class Display(Protocol):
    """What shows one line at a time, in the place of the line before."""

    is_shared: ClassVar[bool]
    """Whether other output is written to the same place, for which the line is cleared."""

    def show(self, text: str) -> None:
        """Shows a line; nothing for an empty text. What ends in a newline stays there."""


class Terminal:
    """The line of stderr that the cursor is in."""

    is_shared: ClassVar[bool] = True

    def __init__(self) -> None:
        self._shown = 0  # width of the line

    def show(self, text: str) -> None:
        """Writes it over the current line."""
        line = text.rstrip("\n")
        blank = " " * max(0, self._shown - len(line))
        self._shown = 0 if text.endswith("\n") else len(line)
        sys.stderr.write(f"\r{line}{blank}" + text[len(line) :] + ("" if text else "\r"))
        sys.stderr.flush()


class Displays:
    """Where progress is shown in this process.

    Attributes:
        notebook: where a notebook has asked for it; else on stderr, if that is a terminal.
    """

    def __init__(self) -> None:
        self.notebook: Display | None = None
        self._terminal = Terminal()

    def current(self) -> Display | None:
        """The display; None: nothing is shown."""
        return self.notebook or (self._terminal if _is_terminal() else None)


displays: Final = Displays()


class Progress:
    """A progress line for long calls and transfers, on the display of this process if it has one.

    Attributes:
        is_active: whether calls have stages, or a transfer is shown: then `finish` must be called.
    """

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Drops the calls and the thread of the parent process, in the child of a fork."""
        self._calls: dict[_CallKey, _CallProgress] = {}
        self._transfers: dict[TransferSource, float] = {}  # with their start times
        self._finished = BoundedDict[_CallKey, None](_MAX_FINISHED)  # late events are ignored
        self._lock = threading.Lock()  # guards all but _writes; not held while writing
        self._ticker: threading.Thread | None = None
        self._shows_transfer = False
        self.is_active = False
        self._shown = ""  # once all of _texts is written
        self._texts: deque[str] = deque()  # not yet written
        self._writes = threading.Lock()  # held by the thread that writes

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Notes that call `number` of a connection entered a stage, or why it was compiled."""
        if kind not in ("stage", "built") or displays.current() is None:
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
                call.waits_behind = _waiting_text(content)
            self.is_active = True
            self._start_ticker()

    def transfer(self, connection: TransferSource) -> None:
        """Notes that the transfer of a large message over a connection begins."""
        if displays.current() is not None:
            with self._lock:
                self._transfers.setdefault(connection, time.monotonic())
                self._start_ticker()

    def _start_ticker(self) -> None:
        if self._ticker is None:
            ticker = threading.Thread(target=self._tick, name="jaxd-progress", daemon=True)
            with suppress(RuntimeError):  # no thread: nothing is shown
                ticker.start()
                self._ticker = ticker

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """Ends the line of a call that is over; its later events are ignored.

        A line that was shown is replaced by how long the call took, or why it was compiled; it is
        cleared when the call has no result: not `ready`.
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
        """Clears the progress line before other output is written, where that is in its way."""
        display = displays.current() if self._shown else None
        if display is not None and display.is_shared:
            with self._lock:
                self._put("")
            self._write()

    def _tick(self) -> None:
        wait, ended = threading.Event().wait, False
        while not ended:
            wait(_TICK_S)
            with self._lock:
                is_moving = self._show_transfer()
                ended = not self._calls and not self._transfers
                if ended:
                    self._ticker = None
                elif self._calls and not is_moving:
                    self._show(min(self._calls.values(), key=lambda call: call.started))
            self._write()

    def _show_transfer(self) -> bool:
        """Shows the oldest transfer if it takes long; removes those that are over."""
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
            subject = f"{call.function}{call.waits_behind}"
            self._put(f"jaxd: {call.stage} {subject} … {call.seconds:.0f} s")

    def _put(self, text: str) -> None:
        """Queues `text` to be shown in the place of the current line."""
        if text != self._shown:
            self._shown = "" if text.endswith("\n") else text
            self._texts.append(text)

    def _write(self) -> None:
        """Shows the queued texts, unless another thread is showing them."""
        while self._texts and self._writes.acquire(timeout=_DISPLAY_S):
            try:
                while self._texts:
                    text, display = self._texts.popleft(), displays.current()
                    if display is not None:
                        display.show(text)
            except (OSError, ValueError):  # the terminal is gone
                self._texts.clear()
            finally:
                self._writes.release()


class _CallProgress:
    def __init__(self, function: str) -> None:
        self.function = function
        self.stage = "working on"
        self.started = time.monotonic()
        self.shown = False
        self.waits_behind = ""
        self.stage_times = ""  # why it was compiled, when that took long
        self._stage_started = self.started
        self._stage_seconds: defaultdict[str, float] = defaultdict(float)

    def enter(self, stage: str) -> None:
        """Ends the current stage and begins another."""
        now = time.monotonic()
        self._stage_seconds[self.stage] += now - self._stage_started
        self.stage, self._stage_started = stage, now

    def times(self) -> str:
        """The durations of the long stages of the build, such as ` (tracing 0.6 s, …)`."""
        self.enter(self.stage)
        stages = ((stage, self._stage_seconds[stage]) for stage in _BUILD_STAGES)
        long = [f"{stage} {seconds:.1f} s" for stage, seconds in stages if seconds >= _MIN_STAGE_S]
        return f" ({', '.join(long)})" if long else ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _waiting_text(content: dict[str, Any]) -> str:
    """Such as ` behind step (78 s)`: what a build waits for, and how long that has been built."""
    if "behind_s" not in content:
        return ""
    other = content.get("behind") or "another client's function"
    return f" behind {other} ({content['behind_s']:.0f} s)"


def _transfer_text(word: str, moved: int, total: int) -> str:
    """Such as `sending 1.2 of 4.0 GB`."""
    unit = next((unit for unit in _UNITS if total >= unit), min(_UNITS))
    return f"{word} {moved / unit:.1f} of {total / unit:.1f} {_UNITS[unit]}"


_UNITS: Final = {10**9: "GB", 10**6: "MB", 10**3: "kB"}


def _build_text(content: dict[str, Any]) -> str:
    """The server's report of a long build, as one line."""
    function, reason = content.get("function", ""), content.get("reason", "")
    text = f"compiled {function} in {content.get('seconds', 0.0):.1f} s: {reason}"
    return " ".join(text.split())


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
