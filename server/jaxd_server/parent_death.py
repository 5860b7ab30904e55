"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress

__all__ = ["die_with_the_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """Asks Linux to kill this process when its parent dies, even while it hangs in C code.

    The parent is a thread: when the one ends that started this process, that is its death, too.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
