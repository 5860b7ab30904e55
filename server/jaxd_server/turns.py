"""Programs that call back run one at a time, so that it is known for whom they do.

XLA calls back in threads of its own, which say nothing of the call that they belong to: that one is
the one whose turn it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxd_protocol.errors import DeadlineExceeded
from jaxd_server.call import Call
from jaxd_server.jax_programs import wait_for_effects
from jaxd_server.run import Run
from jaxd_server.said import tell_once
from jaxd_server.voices import Voice, give_the_floor

__all__ = ["Turns"]


class Turns:
    """Who runs a program that calls back. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held by the call whose turn it is

    def start(self, run: Run, dispatch: Callable[[Run], None]) -> None:
        """Starts a run whose executable talks; one that calls back is over when this returns.

        Raises:
            DeadlineExceeded: when nobody waits for the call any more before its turn comes.
            Exception: what `dispatch` raises, and what the program does that has no results.
        """
        tell_once(run.call, run.executable)
        if not run.executable.program.calls_back:
            return dispatch(run)
        with self._of(run.call):
            dispatch(run)
            wait_for_effects(run.results)
        return None

    @contextmanager
    def _of(self, call: Call) -> Iterator[None]:
        """Within it, it is the turn of this call; waits until it is."""
        left_s = -1.0 if call.deadline is None else max(0.0, call.deadline - time.monotonic())
        if not self._turn.acquire(timeout=left_s):
            raise DeadlineExceeded(
                "the call's timeout_s passed while other programs with callbacks ran. Give it "
                "more time, or call again."
            )
        try:
            with give_the_floor(Voice(call.emit)):
                yield
        finally:
            self._turn.release()
