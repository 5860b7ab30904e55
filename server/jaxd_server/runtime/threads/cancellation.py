"""The cancel token of one call, and the time that the call has spent in each phase.

A call is cancelled by its client (a cancelled future, Ctrl-C), by its `timeout_s`, or by the
server's own limit. The code that works on it is notified at once, as far as that is possible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeVar

from jaxd_protocol.errors import JaxdError

T = TypeVar("T")

CallPhase = Literal["waiting", "building", "running"]

_PHASE_TEXTS: Final[dict[CallPhase, str]] = {
    "waiting": "waiting for its turn",
    "building": "being built",
    "running": "running",
}


class CancelToken:
    """The cancel token of one call. Thread-safe.

    Args:
        clock: seconds that only grow.

    Attributes:
        error: why the call is cancelled; None as long as it is not.
        is_client_notified: whether its client has received that in place of a result.
        phase: the present one; see `set_phase`.
        phase_since: when that began, by the clock.
        waits_behind: what the build that it needs waits for, see `Build.waits_behind`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.error: JaxdError | None = None
        self.is_client_notified = False
        self.waits_behind: Callable[[], tuple[str, object, float] | None] = lambda: None
        self._clock = clock
        self._cancelled_at = 0.0
        self._hooks: list[Callable[[], None]] = []
        self._is_over = False
        self.phase: CallPhase = "waiting"
        self._since = self.phase_since = clock()
        self._spent: dict[CallPhase, float] = dict.fromkeys(_PHASE_TEXTS, 0.0)
        self._lock = threading.Lock()  # guards all of these

    def set_phase(self, phase: CallPhase) -> None:
        """Begins a phase of the call: it waits, is built, or runs."""
        with self._lock:
            self._add_elapsed()
            self.phase = phase
            self.phase_since = self._since

    def _add_elapsed(self) -> None:
        now = self._clock()
        self._spent[self.phase] += now - self._since
        self._since = now

    def spent(self) -> dict[CallPhase, float]:
        """Seconds in each phase so far."""
        with self._lock:
            self._add_elapsed()
            return dict(self._spent)

    def account(self) -> str:
        """The same as text, such as `1.5 s waiting for its turn, 0.2 s running`."""
        spent = self.spent()
        return ", ".join(
            f"{spent[one]:.1f} s {_PHASE_TEXTS[one]}" for one in _PHASE_TEXTS if spent[one] >= 0.05
        )

    def cancel(self, error: JaxdError, *, unless: CallPhase | None = None) -> bool:
        """Cancels the call and runs the hooks; False if it was cancelled or answered before.

        Args:
            error: the reason, raised by `check`.
            unless: a phase in which it is not cancelled.
        """
        with self._lock:
            if self._is_over or self.error is not None or self.phase == unless:
                return False
            self.error = error
            self._cancelled_at = self._clock()
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()
        return True

    def end(self) -> bool:
        """Marks the call as answered: it cannot be cancelled any more. False if it was not open."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
            self._hooks = []
            return not was_over and self.error is None

    def notify(self, hook: Callable[[], None]) -> None:
        """Registers a hook for cancellation, which is called at once if cancelled already.

        It is called once; it has to be quick and must not raise.
        """
        with self._lock:
            is_late = self.error is not None
            if not is_late and not self._is_over:
                self._hooks.append(hook)
        if is_late:
            hook()

    @contextmanager
    def cancel_hook(self, hook: Callable[[], None]) -> Iterator[None]:
        """Registers a hook for cancellation during the block."""
        self.notify(hook)
        try:
            yield
        finally:
            with self._lock:
                if hook in self._hooks:
                    self._hooks.remove(hook)

    @property
    def cancelled_s(self) -> float:
        """Seconds since it was cancelled."""
        return self._clock() - self._cancelled_at

    def check(self) -> None:
        """Raises if the call is cancelled.

        Raises:
            JaxdError: the reason; a new exception for each caller.
        """
        if self.error is not None:
            raise type(self.error)(str(self.error))


class _NeverCancelled(CancelToken):
    """The token of calls that cannot be cancelled."""

    def set_phase(self, phase: CallPhase) -> None:
        """Ignored."""

    def cancel(self, error: JaxdError, *, unless: CallPhase | None = None) -> bool:
        """Ignored."""
        return False

    def notify(self, hook: Callable[[], None]) -> None:
        """Ignored."""


NEVER_CANCELLED: Final = _NeverCancelled()
"""For calls that cannot be cancelled."""


@contextmanager
def assigned(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Within it, a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
