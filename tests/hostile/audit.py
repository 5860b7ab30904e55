"""The oracle: an audit hook that stops, and reports, what no honest exchange does.

Everything is denied that is not declared here. An event that is denied raises `Stopped` before it
happens, so that a find does no harm to the machine that looks for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

HARMLESS: Final = frozenset(
    {
        "array.__new__",
        "builtins.id",
        "cpython.run_stdin",
        "gc.get_referents",
        "gc.get_referrers",
        "object.__getattr__",
        "sys._current_frames",
        "sys._getframe",
        "sys._getframemodulename",
        "sys.unraisablehook",
        "time.sleep",
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
        "mmap.__new__",  # memory; of a file, that file was opened first
        "setopencodehook",
    }
)
"""What reaches nothing outside of the process, and runs nothing."""

_MAX_FRAMES: Final = 40
_MAX_BYTES: Final = 3500  # of a report: a pipe takes so many at once

Allowed = Callable[[tuple[Any, ...], FrameType], bool]


class Stopped(Exception):
    """Something was about to happen that no honest exchange does."""


class Oracle:
    """Installed by `install`, it stops nothing before `arm`.

    Args:
        report_to: a descriptor for one line of JSON for each find.
        allowed: by event, what is allowed of its arguments in the frame that raises it.
        learns: whether what happens before `arm`, and where in the code, is allowed after it too.
    """

    def __init__(
        self, report_to: int, allowed: Mapping[str, Allowed], *, learns: bool = False
    ) -> None:
        self._report_to = report_to
        self._allowed = dict(allowed)
        self._is_armed = False
        self._learns = learns
        self._learned: set[tuple[Any, ...]] = set()

    def install(self) -> None:
        """For as long as the process lives: Python knows no way back."""
        sys.addaudithook(self._hook)

    def arm(self) -> None:
        """From here on, what is not allowed is stopped."""
        self._is_armed = True

    def disarm(self) -> None:
        """Nothing is stopped any more, until `arm`."""
        self._is_armed = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event in HARMLESS or not (self._is_armed or self._learns):
            return
        frame = sys._getframe()
        frame = frame.f_back or frame  # nothing of Python's may be running
        if self._learns:
            place = _place(event, args, frame)
            if not self._is_armed:
                self._learned.add(place)
            if place in self._learned:
                return
        allowed = self._allowed.get(event)
        try:
            if allowed is not None and allowed(args, frame):
                return
        except Exception:  # noqa: BLE001  a rule that cannot say yes says no
            pass
        try:
            self._report(event, args, frame)
        finally:
            raise Stopped(f"{event} was stopped")

    def _report(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        stack: list[str] = []
        at: FrameType | None = frame
        while at is not None and len(stack) < _MAX_FRAMES:
            stack.append(f"{_short(at.f_code.co_filename)}:{at.f_lineno} {at.f_code.co_name}")
            at = at.f_back
        found = {"find": event, "args": _shown(args), "at": time.monotonic(), "stack": stack}
        line = json.dumps(found).encode()
        while len(line) > _MAX_BYTES and len(stack) > 1:
            stack.pop()
            line = json.dumps(found).encode()
        os.write(self._report_to, line + b"\n")


def _place(event: str, args: tuple[Any, ...], frame: FrameType) -> tuple[Any, ...]:
    """What an event is known by: where in the code it is raised; a file by its name as well."""
    code = frame.f_code
    name = args[0] if event in ("open", "import") and type(args[0]) is str else None
    return event, code.co_filename, code.co_name, name


def _shown(args: tuple[Any, ...]) -> str:
    """Plain values only: the `repr` of others is code of theirs."""
    plain = (str, bytes, int, float, bool, type(None))
    return ", ".join(
        repr(each)[:200] if type(each) in plain else f"<{type(each).__name__}>" for each in args
    )


def _short(path: str) -> str:
    for mark in ("/site-packages/", "/lib/python", "/client/", "/shared/", "/server/", "/tests/"):
        _, found, rest = path.rpartition(mark)
        if found:
            return f"{found[1:]}{rest}" if mark != "/site-packages/" else rest
    return path
