"""Serializes programs with effectful callbacks, so that each callback finds the call it belongs to.

XLA calls back in threads of its own, which do not show the call that they belong to. So only one
such call runs at a time. Where its client was lost, others wait a few seconds for that to come
back, and no longer: it may have been killed on another machine, and then nothing says so.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from jaxd_protocol.errors import CallbackError, DeadlineExceeded
from jaxd_server.execution.call import Call
from jaxd_server.execution.run import Run
from jaxd_server.jax_compat.programs import wait_for_effects
from jaxd_server.user_code.jax_callbacks import calling_back
from jaxd_server.user_code.output import (
    CallOutput,
    add_caller,
    as_default_output,
    output_to,
    remove_caller,
)


class CallbackLock:
    """Serializes runs that call back. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by the call whose turn it is
        self._running: tuple[Call, ...] = ()  # that call

    def start(self, run: Run, dispatch: Callable[[Run], None]) -> None:
        """Starts a run that calls Python; one that calls back is over when this returns.

        Raises:
            DeadlineExceeded: when the call's deadline passes before its turn.
            Exception: what `dispatch` raises, and what the program does that has no results.
        """
        output = CallOutput(run.call.emit)
        if not run.executable.program.calls_back:  # it only computes with Python: takes no turns
            run.output = output
            add_caller(output)
            try:
                with output_to(output):
                    dispatch(run)
            except BaseException:
                self.end(run)
                raise
            return
        with self._turn_of(run.call, output):
            add_caller(output)
            try:
                dispatch(run)
                wait_for_effects(run.results)
            finally:
                remove_caller(output)

    def end(self, run: Run) -> None:
        """A run that calls Python is over."""
        output, run.output = run.output, None
        if output is not None:
            remove_caller(output)

    def _gets_turn(self, until: float) -> bool:
        """Whether it comes in time; a client that was lost keeps others waiting for a moment."""
        while not self._lock.acquire(timeout=max(0.0, min(_LOOK_S, until - time.monotonic()))):
            now = time.monotonic()
            if now >= until:
                return False
            for call in self._running:
                call.stop_waiting(now - _LOST_CLIENT_S)
        return True

    @contextmanager
    def _turn_of(self, call: Call, call_output: CallOutput) -> Iterator[None]:
        """Within it, it is the turn of this call; waits until it is."""
        left_s = -1.0 if call.deadline is None else max(0.0, call.deadline - time.monotonic())
        if call.inside:  # the turn is its own client's, until this call is over
            is_own = any(one.session is call.session for one in self._running)
            left_s = 0.0 if is_own else _NESTED_WAIT_S
        if not self._gets_turn(math.inf if left_s < 0 else time.monotonic() + left_s):
            if call.inside:
                raise CallbackError(
                    "a function that a program has called back called a persistent function that "
                    "has callbacks itself: one would wait for the other. Call it after the first "
                    "one has returned."
                )
            raise DeadlineExceeded(
                "the call's timeout_s passed while other programs with callbacks ran. Give it "
                "more time, or call again."
            )
        self._running = (call,)
        try:
            with as_default_output(call_output), calling_back(call.call_back):
                yield
        finally:
            self._running = ()
            self._lock.release()


_NESTED_WAIT_S: Final = 5.0
"""How long a call from inside of a callback waits for others: it may be waiting for itself."""

_LOST_CLIENT_S: Final = 5.0
"""How long a program waits for a client that was lost, while others wait for their turn."""

_LOOK_S: Final = 0.5
"""How often who waits for a turn looks for that."""
