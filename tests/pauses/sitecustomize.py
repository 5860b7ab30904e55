"""Threads stop between two lines of jaxd now and then, as on a machine that has too much to do.

Python imports this when it starts and `tests/pauses` is on its path, which `make pauses` sees to.
What then fails depends on which thread is faster: the program has a race, or its test has one.
PAUSES is how often, of all lines: 0.003 finds much and makes the tests twice as slow.

Python 3.11 goes round in circles where a function is traced so while an exception waits for another
thread, as one does that is to interrupt the building of a program; there, a test of that hangs.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

SHARE: Final = float(os.environ.get("PAUSES", "0"))

SECONDS: Final = (0.0, 0.001, 0.01, 0.03)
"""The longest is six times as long as a reader may be held up before another takes its place."""

OF_JAXD: Final = tuple(
    map(os.path.normpath, ("client/jaxd", "server/jaxd_server", "shared/jaxd_protocol"))
)

OF_ONE_THREAD: Final = ("fingerprint", "pickling", "function_snapshot", "commands")
"""Much work, and nobody else to be slower than."""

_random: Final = random.Random()
_is_relevant: dict[str, bool] = {}


def pause(frame: FrameType, event: str, _: Any) -> Any:
    """Traces a thread; see `sys.settrace`."""
    if event == "call":
        path = frame.f_code.co_filename
        if path not in _is_relevant:
            _is_relevant[path] = any(name in path for name in OF_JAXD) and not any(
                name in path for name in OF_ONE_THREAD
            )
        return pause if _is_relevant[path] else None
    if event == "line" and _random.random() < SHARE:
        time.sleep(_random.choice(SECONDS))
    return pause


if SHARE:
    threading.settrace(pause)
    sys.settrace(pause)
