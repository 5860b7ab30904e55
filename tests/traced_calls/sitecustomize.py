"""Python imports this when it starts with this folder on its path: it writes calls down.

Each process appends to a file of its own in `JAXD_TRACED_CALLS`, a line for each call of a function
of the product: the thread, the function of the product that called it (`-` where a thread begins
with it), and the function. It does so while the first byte of the file `on` in that folder is not
zero, which all the processes share.

From `FIRST_WINDOW` on, that byte is the number of a window in which all calls of Python functions
are counted. With `NO_MORE` each thread stops for good, so that what is counted by other means is as
without, and the first writes the counts into `PID.counts`: a line with the window, the name of the
thread, the function, which is `-` where it is none of the product, and how often it was called; and
one with `+` for how often a thread came after another one.

The main threads of processes without `JAXD_TRACED_MAIN` are left alone: they import jax, which
takes several times as long otherwise.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

FIRST_WINDOW = 2
NO_MORE = 255

_PACE = "jaxd_server.compilation.compiling.executable"
"""The module that decides by the clock which thread makes a call."""

_PACKAGES = ("client/jaxd/", "server/jaxd_server/", "shared/jaxd_protocol/")


def _name(code: CodeType) -> str | None:
    for package in _PACKAGES:
        if package in code.co_filename:
            path = package + code.co_filename.partition(package)[2]
            return f"{path}:{code.co_qualname.replace('<locals>.', '')}"
    return None


class Counts:
    """How often each function was called, by window and thread.

    Args:
        path: of the file that they are written into.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._counts: Counter[tuple[int, str, str]] = Counter()
        self._names: dict[CodeType, str] = {}
        self._last = ""
        self._writing = threading.Lock()  # guards the file, to which several threads come at once

    def add(self, window: int, code: CodeType) -> None:
        """One more call."""
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = _name(code) or "-"
        thread = threading.current_thread().name
        self._counts[window, thread, name] += 1
        if name != "-" and thread != self._last:
            self._last = thread
            self._counts[window, thread, "+"] += 1

    def write(self) -> None:
        """Writes what was not written yet."""
        with self._writing, open(self._path, "a") as file:
            while self._counts:
                (window, thread, name), calls = self._counts.popitem()
                print(window, thread.replace(" ", "-"), name, calls, file=file)


def _write_call(file: int, frame: FrameType) -> None:
    callee = _name(frame.f_code)
    if callee is None:
        return
    caller, above = None, frame.f_back
    while above is not None and caller is None:
        caller, above = _name(above.f_code), above.f_back
    os.write(file, f"{threading.get_native_id()} {caller or '-'} {callee}\n".encode())


def _pace_by_nothing() -> None:
    """Has a worker take all calls for quick ones: what is counted depends on no clock."""

    class Finder:
        """Stands before all finders, and finds nothing; the module is there a moment later."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            module = sys.modules.get(_PACE)
            if hasattr(module, "Executable"):
                module.QUICK_S = float("inf")  # type: ignore[union-attr]

    sys.meta_path.insert(0, Finder)


def _trace(folder: str) -> None:
    with open(f"{folder}/on", "r+b") as file:
        on = mmap.mmap(file.fileno(), 1)
    calls = os.open(f"{folder}/{os.getpid()}.calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    counts = Counts(f"{folder}/{os.getpid()}.counts")

    def note(frame: FrameType, event: str, _: Any) -> None:
        window = on[0]
        if event != "call" or not window:
            return
        if window == NO_MORE:
            sys.setprofile(None)
            counts.write()
        elif window >= FIRST_WINDOW:
            counts.add(window, frame.f_code)
        else:
            _write_call(calls, frame)

    _pace_by_nothing()
    threading.setprofile(note)
    if "JAXD_TRACED_MAIN" in os.environ:
        sys.setprofile(note)


if "JAXD_TRACED_CALLS" in os.environ:
    _trace(os.environ["JAXD_TRACED_CALLS"])
