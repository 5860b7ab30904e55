"""Warns of a function that is made persistent again for every call."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import CompileAdvice

WARN_AFTER: Final = 16
"""So often may one function be made persistent: a loop does it more often, a test suite less."""

_MAX_PLACES: Final = 1000

_CodePlace = tuple[str, int, bytes]


class RedecorationCounter:
    """Counts how often equal functions from one place were taken apart; safe from any thread."""

    def __init__(self) -> None:
        self._counts = BoundedDict[_CodePlace, int](_MAX_PLACES)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been counting."""
        self._lock = threading.Lock()  # guards _counts

    def record(self, function: Callable[..., Any], key: bytes) -> None:
        """Counts one, and warns, once for each place, when there were many.

        Those that differ in what they close over are different functions, and not counted
        together: the server says what to do about them.

        Args:
            function: what was made persistent.
            key: what it means.
        """
        code = getattr(function, "__code__", None)
        if code is None:
            return
        place = (code.co_filename, code.co_firstlineno, key)
        with self._lock:
            count = self._counts[place] = self._counts.get(place, 0) + 1
        if count == WARN_AFTER:
            from jaxd.request.stacklevel import user_stacklevel

            warnings.warn(_advice(code), CompileAdvice, user_stacklevel())


def _advice(code: Any) -> str:
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return (
        f"{code.co_name} ({file}:{code.co_firstlineno}) was made persistent {WARN_AFTER} times and is "
        "the same each time. Nothing is compiled again, but each time it is taken apart again. Use "
        "persistent_call once, where the function is defined at the level of its module, and call "
        "what it returns."
    )


redecorations: Final = RedecorationCounter()
