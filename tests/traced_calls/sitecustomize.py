"""Python imports this when it starts with this folder on its path: it writes calls down.

Each process appends to a file of its own in `JAXD_TRACED_CALLS`, a line for each call of a function
of the product: the thread, the function of the product that called it (`-` where a thread begins
with it), and the function. It does so while the first byte of the file `on` in that folder is not
zero, which all the processes share.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from types import FrameType
from typing import Any

_PACKAGES = ("client/jaxd/", "server/jaxd_server/", "shared/jaxd_protocol/")


def _name(frame: FrameType) -> str | None:
    code = frame.f_code
    for package in _PACKAGES:
        if package in code.co_filename:
            path = package + code.co_filename.partition(package)[2]
            return f"{path}:{code.co_qualname.replace('<locals>.', '')}"
    return None


def _trace(folder: str) -> None:
    with open(f"{folder}/on", "r+b") as file:
        on = mmap.mmap(file.fileno(), 1)
    calls = os.open(f"{folder}/{os.getpid()}.calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not on[0]:
            return
        callee = _name(frame)
        if callee is None:
            return
        caller, above = None, frame.f_back
        while above is not None and caller is None:
            caller, above = _name(above), above.f_back
        line = f"{threading.get_native_id()} {caller or '-'} {callee}\n"
        os.write(calls, line.encode())

    threading.setprofile(note)
    sys.setprofile(note)


if "JAXD_TRACED_CALLS" in os.environ:
    _trace(os.environ["JAXD_TRACED_CALLS"])
