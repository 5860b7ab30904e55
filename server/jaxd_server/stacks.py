"""Where every thread of a worker stands, written to its log when its host asks, though it hangs."""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from typing import Final

__all__ = ["ask_for_stacks", "show_stacks_when_asked"]

_SIGNAL: Final = signal.SIGUSR2


def show_stacks_when_asked() -> None:
    """Has this process write the stacks of its threads to stderr, when `ask_for_stacks` says so.

    In C, in a handler of a signal: it needs no interpreter, which somebody may be holding.
    """
    faulthandler.register(_SIGNAL, all_threads=True)


def ask_for_stacks(pid: int) -> None:
    """Has the worker with this process id write them. It must have got so far as to be ready."""
    with suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)
